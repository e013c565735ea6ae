"""Return memory to the system: the allocator keeps what a flood of large messages has taken."""

import ctypes
import gc
from collections.abc import Callable

FLOOD_BYTES = 64 << 20
"""Bytes that must arrive before memory is returned."""


class MemoryReturn:
    """Counts the bytes that arrive; `after_flood` returns the memory they have left behind."""

    def __init__(self) -> None:
        self._trim = _allocator_trim()
        self._received = 0

    def note(self, size: int) -> None:
        """Count received bytes."""
        self._received += size

    def after_flood(self) -> bool:
        """Return free memory to the system if much arrived since the last time; return whether it did."""
        if self._received < FLOOD_BYTES:
            return False
        self._received = 0
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        return True


def _allocator_trim() -> Callable[[int], int] | None:
    """Return glibc's `malloc_trim`; other allocators return memory by themselves."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found

"""Gives memory back to the system: the allocator keeps what a flood of large messages has taken."""

import ctypes
import gc
from collections.abc import Callable

FLOOD_BYTES = 64 << 20
"""So much has to come before it is worth the look."""


class MemoryReturn:
    """Counts the bytes that came in; `after_flood` gives back what they have left behind."""

    def __init__(self) -> None:
        self._trim = _allocator_trim()
        self._received = 0

    def note(self, size: int) -> None:
        """So many bytes came in."""
        self._received += size

    def after_flood(self) -> bool:
        """Give free memory back if much has come in since the last time; whether it did."""
        if self._received < FLOOD_BYTES:
            return False
        self._received = 0
        gc.collect()
        if self._trim is not None:
            self._trim(0)
        return True


def _allocator_trim() -> Callable[[int], int] | None:
    """`malloc_trim` of glibc; other allocators return memory by themselves."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found

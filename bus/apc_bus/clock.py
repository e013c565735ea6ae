"""The clock of self-fencing: it goes on while the machine is suspended, and nobody can set it."""

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds since boot, suspension included (CLOCK_BOOTTIME; other systems: the monotonic clock)."""
    return time.clock_gettime(_CLOCK)

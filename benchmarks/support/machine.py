"""What the machine was like during a run: a rate is worth little without it."""

import os
import platform
import sys

IDLE_LOAD = 0.5
"""Load per core up to which the machine counts as idle."""


def describe(load: float, cores: int) -> str:
    """Return interpreter, cores and load in one line; `load` is the average of the last minute."""
    return f"{platform.python_implementation()} {platform.python_version()}, {cores} cores, load {load:.1f}"


def warning(load: float, cores: int) -> str | None:
    """Return what the reader must know of a busy machine; None when it is idle."""
    if load <= IDLE_LOAD * cores:
        return None
    return f"the machine is not idle (load {load:.1f} on {cores} cores): compare CPU seconds and ratios, not rates"


def tell_machine(moment: str) -> None:
    """Print the machine's state, and the warning to standard error."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    print(f"{moment}: {describe(load, cores)}", flush=True)
    found = warning(load, cores)
    if found is not None and moment == "before":
        print(f"benchmarks: {found}", file=sys.stderr)

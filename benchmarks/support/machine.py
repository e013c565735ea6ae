"""What the machine was like during a run: a rate is worth little without it."""

import os
import platform
import sys
from pathlib import Path

IDLE_LOAD = 0.5
"""Load per core up to which the machine counts as idle."""
GROUPS = Path("/proc/sys/kernel/sched_autogroup_enabled")
"""Of Linux: whether the scheduler shares the cores among sessions (1) or among processes (0)."""


def describe(load: float, cores: int) -> str:
    """Return interpreter, cores, load and scheduling in one line; `load` is the average of the last minute."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {cores} cores, load {load:.1f}{scheduling()}"


def scheduling() -> str:
    """Return how Linux shares the cores, after a comma; "" where it does not say."""
    try:
        groups = GROUPS.read_text().strip()
    except OSError:
        return ""
    return f", autogroup {'on' if groups == '1' else 'off'}"


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

"""One call that takes from this process the network, the files, other processes, and memory without end."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessLimits:
    """What the process may use from now on."""

    memory_bytes: int
    """Address space in all, what is taken already included."""
    open_files: int = 64


def confine(limits: ProcessLimits, readable: Sequence[str] = ()) -> tuple[str, ...]:
    """Give up what a computation does not need; returns what this machine does not let a process give up.

    Args:
        readable: folders below which files may still be read; nothing can be written, made or run.

    Returns:
        Of "memory", "files", "network" and "processes" those that stay open, the empty tuple at best.
    """
    if sys.platform != "linux":
        return ("memory", "files", "network", "processes")
    from apc_agents.confinement import kernel_limits, landlock, namespaces, seccomp

    has_own_network = namespaces.leave_network()
    is_bounded = kernel_limits.bound(limits.memory_bytes, limits.open_files)
    has_no_files = landlock.forbid_files(readable)
    has_no_calls = seccomp.forbid_calls()
    given_up = {
        "memory": is_bounded,
        "files": has_no_files,
        "network": has_own_network or has_no_calls,
        "processes": has_no_calls,
    }
    return tuple(name for name, is_given_up in given_up.items() if not is_given_up)

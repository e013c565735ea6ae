"""Limits that the kernel counts: memory, files, processes, time."""

import resource
import signal


def bound(memory_bytes: int, open_files: int) -> bool:
    """Limit memory and open files; forbid growing files, core dumps and new processes."""
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    return all([_lower(which, limit) for which, limit in limits.items()])


def allow_cpu_seconds(seconds: int) -> None:
    """Allow this process this much CPU time from now on; then the kernel kills it. May be called again."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    allowed = int(used.ru_utime + used.ru_stime) + 1 + seconds
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CPU, (allowed if hard == resource.RLIM_INFINITY else min(allowed, hard), hard))


def _lower(which: int, limit: int) -> bool:
    _, hard = resource.getrlimit(which)
    lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    try:
        resource.setrlimit(which, (lowest, lowest))
    except (OSError, ValueError):
        return False
    return True

"""The C library, for calls of the kernel that Python has no name for."""

import ctypes

PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def renounce_privileges() -> bool:
    """Forbid that a started program gains rights; the kernel requires this before it accepts filters."""
    return bool(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)

"""The C library, for calls of the kernel that Python has no name for."""

import ctypes

PR_SET_NO_NEW_PRIVS = 38

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def renounce_privileges() -> bool:
    """No program started from here gains a right; the kernel asks for this before it takes filters."""
    return bool(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)

"""A network of this process's own, with nothing in it."""

from apc_agents.confinement.libc import libc

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000


def leave_network() -> bool:
    """Move to an empty network namespace; False where the kernel or the container does not allow it.

    A process with several threads cannot: call it before a library starts some.
    """
    return bool(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0)

"""The place of the socket: a path in the data folder that only its owner may use."""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apc_web.errors import InputUnusable

OPERATOR_USER = "operator"
"""The broker user in whose name an in-process system publishes what comes through it."""
NAME = "acts.sock"
"""In the data folder."""
_LONGEST_PATH = 100
"""Bytes: the kernel takes some 108 in the address of a socket."""
_WAITING = 16
"""Connections that wait to be taken."""
_PEER = struct.Struct("3i")


def socket_path(folder: Path) -> Path:
    """Return the whole path of the socket of a data folder."""
    return folder.absolute() / NAME


def remove_socket(folder: Path) -> None:
    """Remove the socket of a data folder; idempotent. Raises OSError."""
    socket_path(folder).unlink(missing_ok=True)


def socket_problem(folder: Path) -> str | None:
    """Return why no act can go through the socket of a data folder; None when one may try."""
    path = folder / NAME
    try:
        found = path.lstat()
    except OSError:
        return f"no system runs over {folder}, or it takes no acts: start `apc up`, or set APC_AMQP_URL"
    if not stat.S_ISSOCK(found.st_mode):
        return f"{path} is no socket: remove it"
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        return f"{path} belongs to another user or is open to others: nothing is sent to it"
    return None


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """Yield an address of the socket that the kernel takes: of a long path by a descriptor of its folder.

    Raises InputUnusable where that does not work, OSError when there is no such folder.
    """
    if len(os.fsencode(path)) <= _LONGEST_PATH:
        yield str(path)
        return
    if not Path("/proc/self/fd").is_dir():
        raise InputUnusable(f"{path}: a path of a socket has at most {_LONGEST_PATH} bytes: set a shorter APC_DATA_DIR")
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def bind_socket(folder: Path) -> socket.socket:
    """Return a listening socket of mode 0600 in this folder; what a dead system left there is replaced.

    The caller is the only system of the folder. Raises InputUnusable when something else has the name, OSError.
    """
    path = socket_path(folder)
    try:
        found = path.lstat()
    except FileNotFoundError:
        pass
    else:
        if not (stat.S_ISSOCK(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise InputUnusable(f"{path} is no socket: remove it")
        path.unlink()
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            mask = os.umask(0o177)  # the file has its mode from its beginning
            try:
                bound.bind(address)
            finally:
                os.umask(mask)
        bound.listen(_WAITING)
    except BaseException:
        bound.close()
        raise
    bound.setblocking(False)
    return bound


def is_own_peer(connected: socket.socket) -> bool:
    """Return whether the process at the other end runs as our user, or root; True where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = _PEER.unpack(connected.getsockopt(socket.SOL_SOCKET, option, _PEER.size))
    return user in (os.geteuid(), 0)

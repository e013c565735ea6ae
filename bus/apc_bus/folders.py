"""Folders that belong to one user of the machine."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, EPERM
from pathlib import Path
from secrets import token_hex
from stat import S_ISREG

from apc_bus.crash_points import crash_point


def make_private_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, for their owner alone (mode 0700).

    What exists is left as it is: who made a folder decides who may enter it.

    Raises:
        OSError: the folder cannot be made, or is none.
    """
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(0o700, exist_ok=True)


def make_private_file(path: Path) -> None:
    """Make an empty file for its owner alone (mode 0600); from one of ours that is there, take the rights of others.

    Anyone who may read a file of locks can keep its owner waiting. One that is there is not opened: closing it would
    end the locks of this process. Raises OSError.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        state = path.lstat()
        if S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_mode & 0o077:
            path.chmod(0o600)


def create_private_file(path: Path, content: bytes) -> None:
    """Create a file for its owner alone (mode 0600), with its folder: whole, or not at all if the process dies.

    Raises:
        FileExistsError: there is one; it is left as it is.
        OSError: it cannot be made.
    """
    make_private_folder(path.parent)
    new = path.with_name(f".{path.name}.{token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        crash_point("folders.before_link")
        _put(new, path)
    finally:
        new.unlink(missing_ok=True)


def _put(new: Path, path: Path) -> None:
    try:
        os.link(new, path, follow_symlinks=False)  # unlike a rename, this never replaces an existing file
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if os.path.lexists(path):
            raise FileExistsError(EEXIST, os.strerror(EEXIST), str(path)) from None
        new.replace(path)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the right to read, change and replace a file, against other processes that ask for it.

    The lock is a file beside it, `.NAME.lock`, which stays: the file itself is replaced. Blocks until it is free.

    Raises:
        OSError: it cannot be made there.
    """
    make_private_folder(path.parent)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_open_to_others(folder: Path) -> bool:
    """Return whether other users of the machine may enter or read the folder. Raises OSError."""
    return bool(folder.stat().st_mode & 0o077)


def refuse_of_another(folder: Path) -> None:
    """Raise PermissionError for a folder of another user than us and root: what stands in it may lead anywhere."""
    if folder.stat().st_uid not in (os.geteuid(), 0):
        raise PermissionError(EPERM, "it belongs to another user", str(folder))


def sync_below(folder: Path, path: Path) -> None:
    """Make a file safe against a power cut, with the folders that lead to it from `folder`. Raises OSError."""
    for place in (path, *path.parents):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if place == folder:
            return

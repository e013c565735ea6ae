"""Names that a process holds as long as it lives: the kernel takes them away however it ends.

A name is a byte of a file, and whoever holds it has locked the byte. Unlike a process id that means the same in each
container that shares the file, and it passes to no child process.
"""

import fcntl
import os
from pathlib import Path
from uuid import uuid4

_held: set[str] = set()
_descriptors: dict[Path, int] = {}
"""Never closed: to close any descriptor of a file ends all locks that the process has on it."""


def claim(file: Path | None) -> str:
    """Return a new name that this process holds; without a file no other process can see that. Raises OSError."""
    name = uuid4().hex
    if file is not None:
        fcntl.lockf(_descriptor(file), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(name))
    _held.add(name)
    return name


def release(file: Path | None, name: str) -> None:
    """Hold a name no longer. Raises OSError."""
    if name in _held:
        _held.remove(name)
        if file is not None:
            fcntl.lockf(_descriptor(file), fcntl.LOCK_UN, 1, _place(name))


def is_held(file: Path | None, name: str) -> bool:
    """Return whether a living process holds the name. Raises OSError."""
    if name in _held or file is None:
        return name in _held
    descriptor, place = _descriptor(file), _place(name)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, place)
    except (BlockingIOError, PermissionError):  # which one is up to the system
        return True
    fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, place)
    return False


def _descriptor(file: Path) -> int:
    if file not in _descriptors:
        _descriptors[file] = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    return _descriptors[file]


def _place(name: str) -> int:
    return int(name[:10], 16)

"""Folders that belong to one user of the machine."""

import os
from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Create a folder, and those above it that are missing, for their owner alone (mode 0700).

    What exists is left as it is: who made a folder decides who may enter it.

    Raises:
        OSError: the folder cannot be made, or is none.
    """
    for path in reversed((folder, *folder.parents)):
        if not path.is_dir():
            path.mkdir(0o700, exist_ok=True)


def is_open_to_others(folder: Path) -> bool:
    """Return whether other users of the machine may enter or read the folder. Raises OSError."""
    return bool(folder.stat().st_mode & 0o077)


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

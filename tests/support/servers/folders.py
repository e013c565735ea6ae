"""Where the servers of a test run keep their data."""

import shutil
import tempfile
from pathlib import Path

import psutil

_IN_MEMORY = Path("/dev/shm")
_ROOM = 8 * 2**30
"""Bytes: the servers of a run need about 2 GB."""


def make_server_folder(prefix: str) -> Path:
    """Make a folder for a server's data: in memory where there is room, where each fsync is free.

    Tests kill processes, never the machine: what a process has written survives them in either place.
    """
    room = psutil.virtual_memory().available
    has_room = _IN_MEMORY.is_dir() and min(room, shutil.disk_usage(_IN_MEMORY).free) > _ROOM
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_IN_MEMORY if has_room else None))

"""Where the servers of a test run keep their data."""

import shutil
import tempfile
from pathlib import Path

import psutil

_IN_MEMORY = Path("/dev/shm")
_ROOM = 8 * 2**30
"""Bytes: the servers of a run need about 2 GB."""
_parents: list[Path] = []


def prefer_memory() -> None:
    """Keep the data of servers in memory where there is room: an fsync is free there. Benchmarks must not.

    Tests kill processes, never the machine: what a process has written survives it in either place.
    """
    if _IN_MEMORY.is_dir() and min(psutil.virtual_memory().available, shutil.disk_usage(_IN_MEMORY).free) > _ROOM:
        _parents[:] = [_IN_MEMORY]


def make_server_folder(prefix: str) -> Path:
    """Make an empty folder for a server's data."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=next(iter(_parents), None)))

"""Files that a user names: read whole, or refused with one clear sentence."""

import sys
from pathlib import Path

from apc_console.errors import InputUnusable
from apc_console.output.terminal import standard_output


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, or of the standard input for `-`. Raises InputUnusable."""
    if str(path) == "-":
        return sys.stdin.buffer.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputUnusable(f"cannot read {path}: {error.strerror}") from error


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file; create its folder when missing. Raises InputUnusable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise InputUnusable(f"cannot write {path}: {error.strerror}") from error


def write_output(path: Path, data: bytes) -> None:
    """Write a file, or the standard output for `-`. Raises InputUnusable."""
    if str(path) == "-":
        standard_output().write(data)
    else:
        write_bytes(path, data)

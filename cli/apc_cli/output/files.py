"""Files that a user names: read whole, or refused with one clear sentence."""

import asyncio
import os
import sys
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path
from typing import Any

import orjson

from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import forget_typed, standard_output

# Read the lines of a pipe or file in the event loop.

_AT_ONCE = 65_536


class StandardInput:
    """Standard input, line by line; bytes that are not UTF-8 become surrogate escapes."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._waiting = bytearray()
        self._has_ended = False

    async def read_line(self) -> str | None:
        """Return the next line without its end; None at the end of the input."""
        while (end := self._waiting.find(b"\n")) < 0 and not self._has_ended:
            part = await self._read()
            self._waiting += part
            self._has_ended = not part
        if end < 0 and not self._waiting:
            return None
        line = bytes(self._waiting if end < 0 else self._waiting[:end])
        del self._waiting[: len(line) + 1]
        return line.removesuffix(b"\r").decode(errors="surrogateescape")

    def forget_typed(self) -> None:
        """Forget the lines that were typed at a terminal so far; those of a pipe or a file stay."""
        if os.isatty(self._descriptor):
            self._waiting.clear()
            forget_typed()

    async def _read(self) -> bytes:
        await _until_readable(self._descriptor)
        try:
            return os.read(self._descriptor, _AT_ONCE)
        except OSError:  # the terminal is gone
            return b""


async def _until_readable(descriptor: int) -> None:
    """Wait until a read returns at once. A regular file is always ready."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except OSError:
        return
    try:
        await readable.wait()
    finally:
        loop.remove_reader(descriptor)


MOST_BYTES = 1 << 30
"""Of a file that a command reads whole: a device such as /dev/zero has no end."""


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a file, or of the standard input for `-`, up to 1 GiB. Raises InputUnusable."""
    try:
        if str(path) == "-":
            data = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InputUnusable(f"cannot read {path}: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InputUnusable(f"cannot read {path}: it has more than {MOST_BYTES} bytes, or no end")
    return data


def names_in(file: Path) -> list[str]:
    """Return the `module:name`s of a file, one a line; `#` begins a comment. Raises InputUnusable."""
    try:
        lines = read_bytes(file).decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputUnusable(f"{file}: it is no text in UTF-8: {error.reason} at byte {error.start}") from error
    return [name for line in lines if (name := line.partition("#")[0].strip())]


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


# Cursors of `--after`: where a page ended. Opaque: only the command that printed one can read it.


def write_cursor(*values: int | str) -> str:
    """Return the cursor for these values."""
    return urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def read_cursor(cursor: str, *types: type) -> list[Any]:
    """Return the values of a cursor, one of each type. Raises InputUnusable for anything else."""
    try:
        values = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        values = None
    if not isinstance(values, list) or [type(value) for value in values] != list(types):
        raise InputUnusable(f"--after {cursor} is no cursor of this command: take the one that it printed")
    return values

"""Read the lines of a pipe or file in the event loop."""

import asyncio
import os

_AT_ONCE = 65_536


class StandardInput:
    """Standard input that is no terminal; bytes that are not UTF-8 become surrogate escapes."""

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

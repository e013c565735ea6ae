"""A TCP proxy in front of a broker: cuts connections, and swallows what one side says while the other waits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_CHUNK_BYTES = 1 << 16


class Proxy:
    """Stands between one client and a broker; made by `Proxy.open`.

    Attributes:
        url: the broker's URL, by way of the proxy.
        taken: how many connections were made.
    """

    def __init__(self, broker_url: str) -> None:
        parts = urlsplit(broker_url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 5672
        self._parts = parts
        self._flows = asyncio.Event()
        self._flows.set()
        self._freezes_on: bytes | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.taken = 0

    def freeze(self) -> None:
        """Nothing passes any more, in neither direction; the connections stay open."""
        self._flows.clear()

    def freeze_after(self, needle: bytes) -> None:
        """Freeze as soon as the client has said this: the broker still hears it, its answer is held back."""
        self._freezes_on = needle

    @property
    def is_frozen(self) -> bool:
        """Whether nothing passes."""
        return not self._flows.is_set()

    def thaw(self) -> None:
        """Let everything pass, what was held back first."""
        self._freezes_on = None
        self._flows.set()

    def cut(self) -> None:
        """Cut all connections, as a broken cable that both sides notice; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            self.taken += 1
            broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
            self._writers |= {writer, broker_writer}
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._pass_on(reader, broker_writer, is_client=True))
                    tasks.create_task(self._pass_on(broker_reader, writer, is_client=False))
            finally:
                self._writers -= {writer, broker_writer}
                broker_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_client: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
                if is_client and self._freezes_on is not None and self._freezes_on in data:
                    self._freezes_on = None
                    self.freeze()
        writer.transport.abort()

    async def _start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        credentials, _, _ = self._parts.netloc.rpartition("@")
        netloc = f"{credentials}@127.0.0.1:{port}" if credentials else f"127.0.0.1:{port}"
        self.url = urlunsplit(self._parts._replace(netloc=netloc))
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._take(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy closes; a cancelled handler would be reported as an error
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @classmethod
    @asynccontextmanager
    async def open(cls, broker_url: str) -> AsyncIterator[Self]:
        """Put a proxy in front of the broker of an AMQP URL; leaving cuts what goes through it."""
        proxy = cls(broker_url)
        server = await proxy._start()
        try:
            yield proxy
        finally:
            server.close()
            await proxy._close()

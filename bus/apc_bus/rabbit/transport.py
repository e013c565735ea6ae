"""A connection that knows when it last read from the broker, for self-fencing (architecture.md section 2)."""

import asyncio
from collections.abc import Iterable
from typing import Any, SupportsIndex

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError
from yarl import URL

from apc_bus.clock import boottime
from apc_bus.rabbit.header_repair import HEADER_FRAME, repaired

_READ_LIMIT_BYTES = 1 << 20
_CHANNEL_AND_LENGTH = 6


class Silence:
    """The reads of one connection since a moment: the last one, and the longest gap between two."""

    def __init__(self) -> None:
        self.last_read = boottime()
        self._longest = 0.0

    def end(self, now: float) -> None:
        """Something was read."""
        self._longest = max(self._longest, now - self.last_read)
        self.last_read = now

    @property
    def longest(self) -> float:
        """Seconds, the silence that still lasts included."""
        return max(self._longest, boottime() - self.last_read)


class _Reader(asyncio.StreamReader):
    """Every read of the socket passes here, a heartbeat's included, and every frame on its way to the parser.

    aiormq reads a frame in three pieces: its kind (1 byte), channel and length (6), payload and end byte.
    """

    def __init__(self, silences: set[Silence]) -> None:
        super().__init__(limit=_READ_LIMIT_BYTES)
        self._silences = silences
        self._kind = 0
        self._payload: bytes | None = None
        """Of a content header, read ahead because its length may change."""

    async def readexactly(self, n: int) -> bytes:
        if n == 1:
            kind = await super().readexactly(1)
            self._kind = kind[0]
            return kind
        if self._payload is not None:
            payload, self._payload = self._payload, None
            return payload
        piece = await super().readexactly(n)
        if self._kind == HEADER_FRAME and n == _CHANNEL_AND_LENGTH:
            return await self._check_header(piece)
        return piece

    async def _check_header(self, piece: bytes) -> bytes:
        self._kind = 0
        payload = await super().readexactly(int.from_bytes(piece[2:], "big") + 1)
        replacement = repaired(payload[:-1])
        self._payload = payload if replacement is None else replacement + payload[-1:]
        return piece if replacement is None else piece[:2] + len(replacement).to_bytes(4, "big")

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        now = boottime()
        for silence in self._silences:
            silence.end(now)
        super().feed_data(data)


class ListeningTransport(TransportFactory):
    """Opens the TCP or TLS transport of one connection; `silences` are told of every read."""

    def __init__(self) -> None:
        self.silences: set[Silence] = set()

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """As aiormq's factories. Raises AMQPConnectionError."""
        contexts = kwargs.pop("ssl_context_provider")
        tls = await contexts.get_context() if url.scheme == "amqps" else None
        if url.host is None or url.port is None:
            raise AMQPConnectionError("the URL has no host or port")
        loop = asyncio.get_running_loop()
        reader = _Reader(self.silences)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, host=url.host, port=url.port, ssl=tls, **kwargs
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

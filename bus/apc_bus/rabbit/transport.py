"""A connection that knows when it last read from the broker, for self-fencing.

Source: docs/specification/architecture.md section 2.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, SupportsIndex

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from yarl import URL

from apc_bus.clock import boottime
from apc_bus.rabbit.consuming.splitting import FrameSplitter
from apc_bus.tls import ALERT, TlsSpoken

_READ_LIMIT_BYTES = 1 << 20
_SIGN_OF_LIFE_SECONDS = 0.5
_HEARTBEAT = b"\x08\0\0\0\0\0\0\xce"


class Silence:
    """The reads of one connection since a moment: the last one, and the longest gap between two."""

    def __init__(self) -> None:
        self.last_read = boottime()
        self._longest = 0.0

    def end(self, now: float) -> None:
        """Note that something was read."""
        self._longest = max(self._longest, now - self.last_read)
        self.last_read = now

    @property
    def longest(self) -> float:
        """Seconds, the silence that still lasts included."""
        return max(self._longest, boottime() - self.last_read)


class _Reader(asyncio.StreamReader):
    """Every read of the socket passes here, a heartbeat's included."""

    def __init__(self, silences: set[Silence], splitter: FrameSplitter) -> None:
        super().__init__(limit=_READ_LIMIT_BYTES)
        self._silences = silences
        self._splitter = splitter
        self._has_begun = False
        self._passed_on_at = boottime()

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        now = boottime()
        for silence in self._silences:
            silence.end(now)
        received = bytes(data)
        if not self._has_begun and received.startswith(ALERT):
            self.set_exception(TlsSpoken("that port speaks TLS"))
            return
        self._has_begun = True
        try:
            others = self._splitter.split(received)
        except Exception as error:
            # What the broker sends and we cannot read ends the connection, as in aiormq.
            self.set_exception(InvalidFrameError(repr(error)))
            return
        if not others and now - self._passed_on_at > _SIGN_OF_LIFE_SECONDS:
            others = _HEARTBEAT  # aiormq gives a connection up on which it sees no frames
        if others:
            self._passed_on_at = now
            super().feed_data(others)

    def feed_eof(self) -> None:
        rest = self._splitter.take_rest()
        if rest:
            super().feed_data(rest)
        super().feed_eof()


class ListeningTransport(TransportFactory):
    """Opens the TCP or TLS transport of one connection; `silences` are told of every read.

    Channels added to `splitter` take their messages and confirms directly.
    """

    def __init__(self) -> None:
        self.silences: set[Silence] = set()
        self.splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """Close the socket at once, whatever the other side does; idempotent."""
        if self._transport is not None:
            self._transport.abort()

    async def create(self, url: URL, **kwargs: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Create a transport, with the signature of aiormq's factories. Raises AMQPConnectionError."""
        contexts = kwargs.pop("ssl_context_provider")
        tls = await contexts.get_context() if url.scheme == "amqps" else None
        if url.host is None or url.port is None:
            raise AMQPConnectionError("the URL has no host or port")
        loop = asyncio.get_running_loop()
        reader = _Reader(self.silences, self.splitter)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, host=url.host, port=url.port, ssl=tls, **kwargs
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self._transport = transport
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

"""The bytes of a connection: messages split out of them before aiormq, and when the broker was last heard.

When it was heard is for self-fencing. Source: docs/specification/architecture.md section 2.
"""

import asyncio
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, SupportsIndex

from aiormq.connection import TransportFactory
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from yarl import URL

from apc_bus.concurrency import boottime
from apc_bus.tls import ALERT, TlsSpoken

_FRAME = struct.Struct(">BHI")
_OVERHEAD = _FRAME.size + 1
_METHOD, _HEADER, _BODY = 1, 2, 3
_FRAME_END = 0xCE
_DELIVER, _RETURN, _ACK, _NACK = b"\0\x3c\0\x3c", b"\0\x3c\0\x32", b"\0\x3c\0\x50", b"\0\x3c\0\x78"
_TAG = struct.Struct(">QB")
_BLOCKED, _UNBLOCKED = b"\0\x0a\0\x3c", b"\0\x0a\0\x3d"


class Taker(Protocol):
    """A channel that takes its content and confirms directly. The payloads are those of the frames."""

    def take_delivery(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a message for a consumer of this channel."""
        ...

    def take_return(self, method: bytes, header: bytes) -> None:
        """Take back a publish that no queue took; its confirm follows."""
        ...

    def take_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
        """Take the broker's confirm or refusal of a publish, or of all up to it."""
        ...


@dataclass(slots=True)
class _Content:
    """A message of which frames are still to come."""

    method: bytes
    header: bytes = b""
    missing: int = 1
    pieces: list[bytes] = field(default_factory=list)


# Takes deliveries, returns and confirms out of the byte stream of a connection, before aiormq sees it.
#
# aiormq reads each frame in three pieces, parses it into objects and passes it through two queues and a task: 40 µs
# of CPU for each message. Here a message is handed to its channel when its last byte is there. All other frames
# go to aiormq as they are: their order among themselves stays, and so does that of what is taken out.


class FrameSplitter:
    """Splits the stream of one connection. Channels that are not in `takers` are left to aiormq."""

    def __init__(self) -> None:
        self._takers: dict[int, Taker] = {}
        self._contents: dict[int, _Content] = {}
        self._rest = b""
        self.blocked: str | None = None
        """Why the broker reads nothing more from this connection (`low on memory`, `low on disk`); None = it does."""

    def add(self, channel: int, taker: Taker) -> None:
        """Let this channel take its messages itself from now on; replaces an earlier one of the same number."""
        self._takers[channel] = taker
        self._contents.pop(channel, None)

    def forget(self, channel: int) -> None:
        """Leave this channel to aiormq from now on: an earlier one of the same number may have been in `takers`."""
        self._takers.pop(channel, None)
        self._contents.pop(channel, None)

    def split(self, data: bytes) -> bytes:
        """Hand over complete messages; return the frames for aiormq. Raises what a taker raises."""
        buffer = self._rest + data if self._rest else data
        position, end = 0, len(buffer)
        others = []
        while end - position >= _OVERHEAD:
            kind, channel, size = _FRAME.unpack_from(buffer, position)
            after = position + _OVERHEAD + size
            if after > end:
                break
            if channel == 0:
                self._note_block(buffer[position + 7 : after - 1])
            taker = self._takers.get(channel)
            # A frame without its end byte is aiormq's to refuse.
            is_taken = taker is not None and buffer[after - 1] == _FRAME_END
            if taker is None or not is_taken or not self._take(taker, channel, kind, buffer[position + 7 : after - 1]):
                others.append(buffer[position:after])
            position = after
        self._rest = buffer[position:]
        return b"".join(others)

    def take_rest(self) -> bytes:
        """Return the bytes of a frame that is not complete: the stream has ended."""
        rest, self._rest = self._rest, b""
        return rest

    def _note_block(self, payload: bytes) -> None:
        method = payload[:4]
        if method == _BLOCKED:
            self.blocked = payload[5 : 5 + payload[4]].decode(errors="replace")
        elif method == _UNBLOCKED:
            self.blocked = None

    def _take(self, taker: Taker, channel: int, kind: int, payload: bytes) -> bool:
        if kind == _METHOD:
            return self._take_method(taker, channel, payload)
        content = self._contents.get(channel)
        if content is None:
            return False
        if kind == _HEADER:
            content.header = payload
            content.missing = int.from_bytes(payload[4:12], "big")
        elif kind == _BODY:
            content.pieces.append(payload)
            content.missing -= len(payload)
        else:
            return False
        if content.missing <= 0:
            del self._contents[channel]
            self._hand_over(taker, content)
        return True

    def _take_method(self, taker: Taker, channel: int, payload: bytes) -> bool:
        method = payload[:4]
        if method in (_DELIVER, _RETURN):
            self._contents[channel] = _Content(payload)
        elif method in (_ACK, _NACK):
            tag, bits = _TAG.unpack_from(payload, 4)
            taker.take_confirm(tag, is_multiple=bool(bits & 1), is_stored=method == _ACK)
        else:
            return False
        return True

    def _hand_over(self, taker: Taker, content: _Content) -> None:
        if content.method.startswith(_RETURN):
            taker.take_return(content.method, content.header)
        else:
            body = content.pieces[0] if len(content.pieces) == 1 else b"".join(content.pieces)
            taker.take_delivery(content.method, content.header, body)


_READ_LIMIT_BYTES = 1 << 20
_SIGN_OF_LIFE_SECONDS = 0.5
"""While our channels take all frames, aiormq is handed a heartbeat so often, because it sees none of them."""
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

"""A channel that publishes in windows and hands over deliveries without a task for each.

aiormq's own publish takes a lock, two futures and a queue entry for each message, looks through all open
confirms at a multiple ack, and matches returned messages by message_id alone, so that two copies of a packet
in flight get each other's result. Here many publishes are one write, confirms and returns are matched by
(message_id, exchange, routing key), and a second publish with the same three waits for the first.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile

import aiormq
import msgspec
from aiormq.abc import ChannelFrame
from aiormq.exceptions import AMQPChannelError, ChannelInvalidStateError

from apc_bus.clock import boottime
from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.crash_points import crash_point
from apc_bus.errors import BusError, CallAborted, PublishNotTaken, PublishRefused, PublishUnroutable
from apc_bus.port import Publication
from apc_bus.rabbit.connections import Link
from apc_bus.rabbit.decoding import read_return
from apc_bus.rabbit.encoding import publish_frames

CHUNK = 64
"""Publishes in one write."""
DOUBT_SECONDS = 0.25
"""How long a channel is used on after a PublishNotTaken: a leader is elected meanwhile, and a full queue does not cost
a channel a publish."""
_Key = tuple[str, str, str]


class Window:
    """The answers to the publishes of one call: a result by index; what is missing has no answer (yet)."""

    def __init__(self, publications: Sequence[Publication], is_complete: asyncio.Future[None]) -> None:
        self.publications = publications
        self.began_at = boottime()
        self.results: dict[int, BusError | None] = {}
        """None = confirmed."""
        self.is_complete = is_complete

    @property
    def unanswered(self) -> list[int]:
        """Indices of the publishes without an answer."""
        return [index for index in range(len(self.publications)) if index not in self.results]

    def settle(self, index: int, result: BusError | None) -> None:
        """Take the broker's answer for one publish."""
        self.results[index] = result
        if len(self.results) == len(self.publications) and not self.is_complete.done():
            self.is_complete.set_result(None)


class _InFlight(msgspec.Struct, eq=False):
    window: Window
    index: int
    key: _Key
    sent_at: float
    is_returned: bool = False


class BulkChannel(aiormq.Channel):
    """A channel in confirm mode; made by `open_channel`, which sets its bounds."""

    def __init__(self, connection: aiormq.Connection, number: int, publish_window: int) -> None:
        super().__init__(connection, number)
        self.on_delivery: Callable[[bytes, bytes, bytes], None] | None = None
        """Takes the payloads of basic.deliver, of the content header and of the body; it must not fail."""
        self.before_write: Callable[[], bytes] | None = None
        """Frames of this channel that go out with its next publish."""
        self._publish_window = publish_window
        self._in_flight: dict[int, _InFlight] = {}
        self._keys: dict[_Key, int] = {}
        self._found: set[tuple[str, str]] = set()
        self._doubts: dict[tuple[str, str], float] = {}
        self._last_tag = 0
        self._sending = asyncio.Lock()
        self._progress: asyncio.Future[None] | None = None
        self.answered_at = 0.0
        """CLOCK_BOOTTIME, in seconds, of the broker's last answer to a publish; 0 before the first."""

    @property
    def oldest_sent_at(self) -> float | None:
        """CLOCK_BOOTTIME, in seconds, of the oldest publish without an answer; None when there is none."""
        # A copy: other threads ask too (/readyz, /metrics).
        waiting = list(self._in_flight.values())
        return waiting[0].sent_at if waiting and not self.is_closed else None

    @property
    def is_idle(self) -> bool:
        """Whether every publish has its answer."""
        return not self._in_flight

    @property
    def should_be_replaced(self) -> bool:
        """Whether a queue has been refusing all publishes of this channel for a moment (PublishNotTaken)."""
        return any(boottime() - since >= DOUBT_SECONDS for since in self._doubts.values())

    @property
    def refusal(self) -> AMQPChannelError | None:
        """Why the broker closed this channel, if it did."""
        return self._close_exception if isinstance(self._close_exception, AMQPChannelError) else None

    def culprit(self, window: Window) -> int | None:
        """Return the index of the publish that closed this channel; known if it alone was in flight."""
        only = next(iter(self._in_flight.values())) if len(self._in_flight) == 1 else None
        return only.index if only is not None and only.window is window else None

    async def publish_window(self, publications: Sequence[Publication], patience: float) -> Window:
        """Publish all; wait for the answers, the end of the channel or `patience` seconds, whichever is first."""
        window = Window(publications, self.create_future())
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(patience):
                    await self._send(window)
                    # Not awaited itself: at a close the future may hold a CancelledError that is not ours.
                    await asyncio.wait([window.is_complete])
        except (TimeoutError, ChannelInvalidStateError, CallAborted):
            pass  # what has no answer is missing in the results
        return window

    async def _send(self, window: Window) -> None:
        async with self._sending:
            position = 0
            while position < len(window.publications):
                chunk = self._next_chunk(window, position)
                if chunk:
                    await self._write(window, position, chunk)
                    position += len(chunk)
                else:
                    await self._wait_for_progress()

    def _next_chunk(self, window: Window, position: int) -> list[_Key]:
        """Return the keys of what may be sent now: within the window, none of them in flight already."""
        room = min(CHUNK, self._publish_window - len(self._in_flight))
        keys: dict[_Key, None] = {}
        for publication in window.publications[position : position + max(room, 0)]:
            key = (publication.message.message_id, publication.exchange, publication.routing_key)
            if key in self._keys or key in keys:
                break
            keys[key] = None
        return list(keys)

    async def _write(self, window: Window, position: int, keys: list[_Key]) -> None:
        chunk = window.publications[position : position + len(keys)]
        payload = publish_frames(chunk, self.number, self.max_content_size)
        if self.is_closed:
            raise ChannelInvalidStateError(f"{self!r} closed")
        if self.before_write is not None and not self.write_queue.full():
            payload = self.before_write() + payload
        first_tag, now = self._last_tag + 1, boottime()
        for index, key in enumerate(keys):
            self._last_tag += 1
            self._in_flight[self._last_tag] = _InFlight(window, position + index, key, now)
            self._keys[key] = self._last_tag
        try:
            await self.write_queue.put(ChannelFrame(payload, should_close=False))
        except BaseException:
            # Nothing was sent, and nobody else could send: the tags are free again.
            for tag in range(first_tag, self._last_tag + 1):
                del self._keys[self._in_flight.pop(tag).key]
            self._last_tag = first_tag - 1
            raise

    async def _wait_for_progress(self) -> None:
        self._progress = self.create_future()
        await asyncio.wait([self._progress])
        if self.is_closed:
            raise ChannelInvalidStateError(f"{self!r} closed")

    def take_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
        """Take the broker's answer for a publish, or for all up to it."""
        crash_point("publisher.before_confirm")
        self.answered_at = boottime()
        tags: Iterable[int] = (tag,)
        if is_multiple:
            tags = list(takewhile(lambda sent: sent <= tag, self._in_flight))
        for one in tags:
            self._settle(one, is_stored=is_stored)
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(None)

    def _settle(self, tag: int, *, is_stored: bool) -> None:
        sent = self._in_flight.pop(tag, None)
        if sent is None:
            return
        del self._keys[sent.key]
        sent.window.settle(sent.index, self._result(sent, is_stored))

    def _result(self, sent: _InFlight, is_stored: bool) -> BusError | None:
        _, exchange, key = sent.key
        if sent.is_returned:
            return PublishUnroutable(f"no queue takes key {key!r} of exchange {exchange}")
        if is_stored:
            self._found.add((exchange, key))
            self._doubts.pop((exchange, key), None)
            return None
        if (exchange, key) in self._found:
            return PublishRefused(f"a queue for key {key!r} of exchange {exchange} is full")
        self._doubts.setdefault((exchange, key), boottime())
        return PublishNotTaken(f"a queue for key {key!r} of exchange {exchange} is full, or its leader is not known")

    def take_return(self, method: bytes, header: bytes) -> None:
        """Record a publish that no queue took; its confirm comes next."""
        tag = self._keys.get(read_return(method, header))
        if tag is not None:
            self._in_flight[tag].is_returned = True

    def take_delivery(self, method: bytes, header: bytes, body: bytes) -> None:
        """Take a message for the consumer of this channel."""
        if self.on_delivery is not None:
            self.on_delivery(method, header, body)


async def open_channel(link: Link, patience: float, *, publish_window: int = 256) -> BulkChannel:
    """Return a new channel on a live connection.

    Raises:
        TimeoutError: no answer; the connection should be dropped.
        AMQPError, RuntimeError, CallAborted: the connection is gone.
    """
    connection = link.connection
    with unasked_cancel_fails():
        async with asyncio.timeout(patience):
            async with connection.last_channel_lock:
                number = next(number for number in range(1, 65536) if number not in connection.channels)
                channel = BulkChannel(connection, number, publish_window)
                connection.channels[number] = channel
                link.add_taker(number, channel)
            await channel.open(timeout=patience)
    return channel

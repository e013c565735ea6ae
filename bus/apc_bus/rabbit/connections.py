"""Connections to a list of broker nodes, and the channel over which services publish and consume.

A connection is aio-pika's, with its own channels, queues and exchanges for what is asked seldom; what moves packets
goes over `BulkChannel`. Nodes are shuffled, with back-off and jitter, every wait bounded. aio-pika's robust connection
knows one address; here a lost node is replaced by the next one, and anyone who used the connection is told, never
silently resumed.
"""

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import aio_pika
import aiormq
import msgspec
from aio_pika.abc import TimeoutType, UnderlayConnection
from aio_pika.tools import OneShotCallback
from aiormq.abc import AbstractChannel, ChannelFrame, ExceptionType
from aiormq.exceptions import (
    AMQPChannelError,
    AMQPConnectionError,
    AMQPError,
    ChannelInvalidStateError,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from apc_bus.concurrency import Backoff, boottime, unasked_cancel_fails
from apc_bus.crash_points import crash_point
from apc_bus.errors import BusError, BusUnavailable, CallAborted, PublishNotTaken, PublishRefused
from apc_bus.port import Publication
from apc_bus.rabbit.decoding import read_return
from apc_bus.rabbit.encoding import publish_frames
from apc_bus.rabbit.transport import ListeningTransport, Silence
from apc_bus.telemetry import get_logger
from apc_bus.tls import tls_problem
from apc_bus.topology import unroutable

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0

_log = get_logger("apc_bus")


@dataclass(frozen=True, slots=True)
class Timing:
    """How long to wait for the broker, in seconds."""

    heartbeat: float = 5.0
    connect: float = 5.0
    """Limit of one connection attempt to one node."""
    patience: float = 8.0
    """For a connection to any node; then BusUnavailable."""
    answer: float = 10.0
    """For an answer or a confirm."""


class Nodes:
    """The broker's nodes, one set of credentials; a URL may be a list, separated by commas.

    Raises:
        BusUnavailable: no URL, or one that cannot be read.
    """

    def __init__(self, urls: Sequence[str], timing: Timing) -> None:
        if not urls:
            raise BusUnavailable("no broker is given: set APC_AMQP_URL")
        each = [url.strip() for listed in urls for url in listed.split(",") if url.strip()]
        self._urls = [_with_heartbeat(url, timing.heartbeat) for url in each]
        self.timing = timing
        self._is_away = False

    @property
    def user(self) -> str:
        """The broker user of the URLs."""
        return self._urls[0].user or "guest"

    @property
    def scope(self) -> str:
        """The addresses of the nodes and the virtual host, without credentials."""
        return " ".join(sorted(f"{url.host}:{url.port}{url.path}" for url in self._urls))

    def shuffled(self) -> list[URL]:
        """Return the nodes in a new random order."""
        return random.sample(self._urls, len(self._urls))

    async def connect(self, purpose: str) -> "Link":
        """Return a connection to the first node that answers.

        Args:
            purpose: the connection's name in the broker's listings.

        Raises:
            BusUnavailable: no node answered in time, or one refused the credentials or the virtual host.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timing.patience
        backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while True:
            problems, lasting = [], 0
            for url in self.shuffled():
                try:
                    link = await self._connect_to(url, purpose)
                    self._note_back()
                    return link
                except _TlsFailed as error:
                    problems.append(f"{url.host}:{url.port} {error}")
                    lasting += 1
                except (AMQPConnectionError, OSError, TimeoutError) as error:
                    problems.append(f"{url.host}:{url.port} {str(error) or type(error).__name__}")
            problems.sort()  # the nodes are asked in another order each time
            if lasting == len(problems):
                raise BusUnavailable(f"no broker node can be reached with TLS: {'; '.join(problems)}")
            self._note_away(problems)
            if loop.time() + backoff.pause > deadline:
                raise BusUnavailable(
                    f"no broker node answers ({'; '.join(problems)}): start RabbitMQ or check APC_AMQP_URL"
                )
            await backoff.wait()

    def _note_away(self, problems: list[str]) -> None:
        if not self._is_away:
            _log.warning("broker_awaited", problems=problems)
        self._is_away = True

    def _note_back(self) -> None:
        if self._is_away:
            _log.info("broker_back")
        self._is_away = False

    async def _connect_to(self, url: URL, purpose: str) -> "Link":
        try:
            with unasked_cancel_fails():
                link = await aio_pika.connect(
                    url.update_query(name=purpose), connection_class=Link, timeout=self.timing.connect
                )
        except ProbableAuthenticationError as error:
            raise BusUnavailable(
                f"{url.host}:{url.port} refuses user {url.user!r} or its password: check APC_AMQP_URL"
            ) from error
        except (ConnectionNotAllowed, InvalidFrameError) as error:
            # Measured: a virtual host that is absent or not granted arrives as an unexpected frame.
            raise BusUnavailable(
                f"user {url.user!r} may not use virtual host {_virtual_host(url)!r} of {url.host}:{url.port}, "
                "or there is none of that name: check APC_AMQP_URL and the user's permissions"
            ) from error
        except (AMQPConnectionError, OSError) as error:
            if problem := tls_problem(error, "APC_AMQP"):
                raise _TlsFailed(problem) from error
            raise
        link.patience = self.timing.connect
        return link


class _TlsFailed(Exception):
    """A node that is there, and with which TLS does not come about: waiting does not mend it."""


class _Connection(aiormq.Connection):
    # aiormq waits for three heartbeats and their intervals, 18 s at 5 s; a frozen node is to be left sooner.
    HEARTBEAT_GRACE_MULTIPLIER = 2

    def __init__(self, url: URL, transport: ListeningTransport) -> None:
        super().__init__(url, transport_factory=transport)
        self._splitter = transport.splitter

    async def channel(self, *arguments: Any, **options: Any) -> AbstractChannel:
        """Open a channel of the library, perhaps with the number of a bulk channel that has been closed."""
        channel = await super().channel(*arguments, **options)
        self._splitter.forget(channel.number)
        return channel


class Link(aio_pika.Connection):
    """One live connection: of a service, or of a command, which uses aio-pika's channels, queues and exchanges on it.

    A service asks for bulk channels only. aio-pika leaves some 4 kB on its connection for each channel that it has
    opened (measured with 10.2.1 and aiormq 7.2.4), until the connection ends.
    """

    def __init__(self, url: URL, **options: Any) -> None:
        super().__init__(url, **options)
        self._bytes = ListeningTransport()
        self.underlay = _Connection(self.url, self._bytes)
        """The connection of aiormq below."""
        self.patience = Timing().connect
        """So many seconds `close` waits."""
        self.is_suspect = False
        """The broker did not answer on it in time: it is not used again."""

    async def connect(self, timeout: TimeoutType = None) -> None:  # noqa: ASYNC109 - aio-pika's signature
        """Open it, once. Raises TimeoutError, AMQPError, OSError."""
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(timeout):
                    await self.underlay.connect()
        except BaseException:
            self._note_closed()
            raise
        told = OneShotCallback(self._on_connection_close)
        self.underlay.closing.add_done_callback(told)
        self.transport = UnderlayConnection(self.underlay, told)
        await self._on_connected()

    async def _on_connection_close(self, closing: asyncio.Future[Any]) -> None:
        await super()._on_connection_close(closing)
        self._note_closed()  # aio-pika itself does so only when it closed the connection

    def _note_closed(self) -> None:
        if not self._closed.done():
            self._closed.set_result(True)

    async def bulk_channel(self, patience: float, *, publish_window: int = 256) -> "BulkChannel":
        """Return a new channel that publishes and consumes in bulk.

        Raises:
            TimeoutError: no answer; the connection should be dropped.
            AMQPError, RuntimeError, CallAborted: the connection is gone.
        """
        connection = self.underlay
        with unasked_cancel_fails():
            async with asyncio.timeout(patience):
                async with connection.last_channel_lock:
                    number = next(number for number in range(1, 65536) if number not in connection.channels)
                    channel = BulkChannel(connection, number, publish_window)
                    connection.channels[number] = channel
                    self._bytes.splitter.add(number, channel)
                await channel.open(timeout=patience)
        return channel

    @property
    def blocked(self) -> str | None:
        """Why the broker takes nothing from this connection now, None = it does.

        It says so to those that publish, while memory or disk run out; what comes from it still comes.
        """
        return self._bytes.splitter.blocked

    @property
    def is_alive(self) -> bool:
        """Whether the connection can be used. After a forced close trust the exception, not this."""
        return self.underlay.is_opened

    def watch(self) -> Silence:
        """Start to measure the broker's silence; end it with `unwatch`."""
        silence = Silence()
        self._bytes.silences.add(silence)
        return silence

    def unwatch(self, silence: Silence) -> None:
        """Stop measuring."""
        self._bytes.silences.discard(silence)

    async def close(self, exc: ExceptionType | None = asyncio.CancelledError) -> None:
        """Close it; never raises, never waits longer than `patience` seconds.

        aio-pika's own close waits for a callback even when it has been cancelled: a frozen node would hold it up.
        """
        self._close_called = True
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(self.patience):
                    await self.underlay.close(exc)
        except (AMQPError, OSError, RuntimeError, TimeoutError) as error:
            _log.info("connection_close_failed", reason=repr(error))
        finally:
            # A peer that does not answer a close may still hold what it handed over: a cut is what it notices.
            self._bytes.abort()
            self._note_closed()


class SharedLink:
    """A connection that is opened when first needed and again when it is lost."""

    def __init__(self, nodes: Nodes, purpose: str) -> None:
        self._nodes = nodes
        self._purpose = purpose
        self._link: Link | None = None
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def get(self) -> Link:
        """Return the live connection. Raises BusUnavailable."""
        async with self._lock:
            if self._is_closed:
                raise BusUnavailable("this bus is closed")
            if self._link is not None and self._link.is_suspect:
                await self.drop()
            if self._link is None or not self._link.is_alive:
                self._link = await self._nodes.connect(self._purpose)
            return self._link

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that can be used."""
        return self._link is not None and self._link.is_alive

    @property
    def blocked(self) -> str | None:
        """Why the broker takes nothing from the connection now; None = it does, or there is none."""
        return self._link.blocked if self._link is not None and self._link.is_alive else None

    async def drop(self) -> None:
        """Close the connection; the next `get` opens another, perhaps at another node."""
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def close(self) -> None:
        """Close permanently; idempotent."""
        self._is_closed = True
        await self.drop()


def _virtual_host(url: URL) -> str:
    return url.path[1:].replace("%2F", "/") or "/"  # as aiormq reads it


def _with_heartbeat(text: str, heartbeat: float) -> URL:
    try:
        url = URL(text)
        if url.scheme not in ("amqp", "amqps") or not url.host:
            raise ValueError("no AMQP URL")
        port = url.port or (5671 if url.scheme == "amqps" else 5672)
    except ValueError:
        # Its text and the error's may hold the password.
        raise BusUnavailable(
            "an AMQP URL cannot be read: it must be amqp://user:password@host/virtual-host, with %-escapes in user and "
            "password"
        ) from None
    return url.with_port(port).update_query(heartbeat=str(round(heartbeat)))


# A channel that publishes in windows and hands over deliveries without a task for each.
#
# aiormq's own publish takes a lock, two futures and a queue entry for each message, looks through all open
# confirms at a multiple ack, and matches returned messages by message_id alone, so that two copies of a packet
# in flight get each other's result. Here many publishes are one write, confirms and returns are matched by
# (message_id, exchange, routing key), and a second publish with the same three waits for the first.

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
    """A channel in confirm mode; made by `Link.bulk_channel`, which sets its bounds."""

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
        for answered in tags:
            self._settle(answered, is_stored=is_stored)
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
            return unroutable(exchange, key)
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

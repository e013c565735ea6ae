"""The writer of one shard: takes log batches from its queue, commits them, and only then acknowledges.

What it says about that goes to /metrics (docs/how-to/observability.md), spans, and lines at DEBUG: ids, never content.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from logging import DEBUG
from types import TracebackType
from typing import Protocol, Self
from weakref import WeakSet

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from prometheus_client import REGISTRY, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from structlog.contextvars import bind_contextvars

from apc_bus.concurrency import Backoff, cancelled, reason_of, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY, first_line, note_failure
from apc_bus.errors import BusError, BusUnavailable
from apc_bus.gen_ai import messaging
from apc_bus.last_resort import LastResort, taken_alone
from apc_bus.port import Bus, Delivery, Subscription
from apc_bus.settings import PersisterSettings
from apc_bus.telemetry import NO_TRACE, SpanKind, fail_span, get_logger, is_tracing, start_span, trace_headers
from apc_bus.topology import log_queue
from apc_log.batch import LogBatch, PacketEntry
from apc_log.placement import LogDatabases
from apc_persister.encryption import Encryption
from apc_persister.evidence.tree import TreeSigner
from apc_persister.intake import Received, read_message
from apc_persister.transaction import Committed, Part, commit, commit_together

_COMMIT_SECONDS = Histogram(
    "apc_log_commit_seconds",
    "Time of a transaction of the log writer.",
    buckets=(1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 1, 5, 25),
)
_DELAY_SECONDS = Histogram(
    "apc_log_commit_delay_seconds",
    "From the moment at which the oldest batch of a transaction was judged, by the gate's clock, to its commit.",
    buckets=(5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 1, 5, 25, 100),
)
COUNTED = {
    "transactions": "Transactions of the log writer; one for several shards counts for each of them.",
    "messages": "Log batches and epoch openings that were committed.",
    "entries": "Entries appended to the log.",
    "duplicates": "Batches that were in the log already.",
    "fenced": "Batches of a gate that had lost its shard.",
    "unstored": "Entries that could not be stored and are kept as conflicts.",
    "failures": "Attempts that the database did not take.",
}
"""The fields of WriterCounts, each of them a counter."""


def count_commit(messages: Sequence[Received], seconds: float) -> None:
    """Time a transaction that took these messages."""
    _COMMIT_SECONDS.observe(seconds)
    judged = [message.content.judged_at for message in messages if isinstance(message.content, LogBatch)]
    if judged:
        _DELAY_SECONDS.observe(max(0.0, (datetime.now(UTC) - min(judged)).total_seconds()))


class Counted(Protocol):
    """A writer: its shard, and the fields of COUNTED."""

    @property
    def shard(self) -> int: ...

    @property
    def counts(self) -> object: ...

    @property
    def is_ready(self) -> bool: ...


class Writes(Protocol):
    """A persister."""

    @property
    def writers(self) -> Sequence[Counted]: ...


class _Writers(Collector):
    """What is read when somebody asks: the writers of this process."""

    def __init__(self) -> None:
        self.persisters: WeakSet[Writes] = WeakSet()

    def collect(self) -> Iterator[Metric]:
        writers = [writer for persister in list(self.persisters) for writer in persister.writers]
        for name, meaning in COUNTED.items():
            counter = CounterMetricFamily(f"apc_log_{name}", meaning, labels=["shard"])
            for shard in sorted({writer.shard for writer in writers}):
                counts = [writer.counts for writer in writers if writer.shard == shard]
                counter.add_metric([str(shard)], sum(getattr(one, name) for one in counts))
            yield counter
        meaning = "1 = it consumes, and its database answers."
        ready = GaugeMetricFamily("apc_log_writer_ready", meaning, labels=["shard"])
        for shard in sorted({writer.shard for writer in writers}):
            ready.add_metric([str(shard)], int(any(one.is_ready for one in writers if one.shard == shard)))
        yield ready


_writers = _Writers()
REGISTRY.register(_writers)


def follow_writers(persister: Writes) -> None:
    """Show the writers of a persister as long as it lives."""
    _writers.persisters.add(persister)


# The writer's own connection: jsonb as ready bytes, plans that do not change with the size of the log.

_PLAN_BY_INDEX = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
"""The writer only looks ids up. Without these the planner reads the whole of a middle-sized table instead."""


async def take_connection(pool: asyncpg.Pool, heartbeat: timedelta) -> PoolConnectionProxy:
    """Return a connection of the pool, made the writer's; give it back with `drop_connection`, never to the others."""
    connection = await pool.acquire(timeout=heartbeat.total_seconds())
    try:
        milliseconds = int(heartbeat.total_seconds() * 1000)
        await connection.execute(
            f"SET statement_timeout = {milliseconds};"
            f"SET idle_in_transaction_session_timeout = {milliseconds};"
            + "".join(f"SET {setting} = off;" for setting in _PLAN_BY_INDEX)
        )
        # The binary form of jsonb is a version byte and the text: COPY needs it, and nothing is parsed here.
        await connection.set_type_codec("jsonb", schema="pg_catalog", format="binary", encoder=_encode, decoder=_decode)
    except BaseException:
        await drop_connection(pool, connection)
        raise
    return connection


async def drop_connection(pool: asyncpg.Pool, connection: PoolConnectionProxy) -> None:
    """Close it instead of returning it: it may be broken, and its codec is not the pool's."""
    with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
        await pool.release(connection)


def stands(connection: PoolConnectionProxy | None) -> bool:
    """Return whether it is there and not closed; the pool takes one that the server has closed away by itself."""
    try:
        return connection is not None and not connection.is_closed()
    except asyncpg.InterfaceError:
        return False


def _encode(value: bytes) -> bytes:
    return b"\x01" + value


def _decode(value: bytes) -> bytes:
    return bytes(value[1:])


_log = get_logger(__name__)


@contextmanager
def in_transaction(shard: int, messages: Sequence[Received]) -> Iterator[None]:
    """Open the span of a transaction, with a link to the log batch of each message (fan-in)."""
    if not is_tracing():
        yield
        return
    links = [trace_headers(message.delivery.message.headers) for message in messages]
    where: dict[str, str | int] = {
        **messaging("process", "commit", log_queue(shard)),
        "db.system.name": "postgresql",
        "apc.shard": shard,
        "apc.batches": len(messages),
    }
    span = start_span("commit log batches", SpanKind.CONSUMER, NO_TRACE, links, where)
    assert span is not None
    try:
        yield
    except Exception as error:
        fail_span(span, error)
        raise
    finally:
        span.end()


def tell_committed(messages: Sequence[Received]) -> None:
    """Write a line for each batch that is in the log now, and for each packet in it; costs nothing above DEBUG."""
    if not _log.is_enabled_for(DEBUG):
        return
    for batch in (message.content for message in messages if isinstance(message.content, LogBatch)):
        where = {"epoch": batch.epoch, "batch": batch.batch_no}
        _log.debug("batch_committed", entries=len(batch.entries), **where)
        for entry in batch.entries:
            if isinstance(entry, PacketEntry):
                _log.debug(
                    "packet_committed",
                    packet_id=str(entry.packet_id),
                    packet_type=entry.packet_type,
                    session_id=entry.session_id,
                    run_id=entry.run_id,
                    agent_id=entry.sender_agent_id,
                    **where,
                )


_MAX_BYTES = 4 << 20
_HANDED_OVER_SECONDS = 0.05
"""So long one that is told to stop waits for deliveries once the broker has answered a question asked later."""
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


@dataclass(slots=True)
class WriterCounts:
    """What a writer has done since it started."""

    transactions: int = 0
    messages: int = 0
    entries: int = 0
    duplicates: int = 0
    fenced: int = 0
    unstored: int = 0
    failures: int = 0
    """Attempts that the database did not take."""

    def add(self, done: Committed) -> None:
        """Count one transaction."""
        self.transactions += 1
        self.messages += done.messages
        self.entries += done.entries
        self.duplicates += done.duplicates
        self.fenced += done.fenced
        self.unstored += done.unstored


BUSY_SECONDS = 0.5
"""A shard is busy for this long after the beginning of a transaction."""
MOST_BUSY = 10
"""From this many busy shards on the interval grows no more: readers of the log wait for it."""


class Pace:
    """Time between the beginnings of two transactions of a shard, while there is nothing left to write.

    The writers of a process share it. With several busy shards each begins less often, and all of them at the same
    moments, so that their transactions stay large and one can take what all of them have.
    """

    def __init__(self, interval: timedelta) -> None:
        self._interval_s = interval.total_seconds()
        self._began_at: dict[int, float] = {}

    def begin(self, shard: int) -> None:
        """Note that a transaction of the shard begins."""
        self._began_at[shard] = time.monotonic()

    def rest(self, shard: int) -> float:
        """Return the seconds until the shard's next transaction may begin; 0 or less = now."""
        began = self._began_at.get(shard)
        if began is None:
            return 0.0
        now, busy = time.monotonic(), self.busy
        longest = self._interval_s * max(1, min(busy, MOST_BUSY))
        until = began + longest
        if busy > 1:
            # The last moment of a common clock that is hardly later, but never at once again.
            common = (until + self._interval_s / 2) // longest * longest
            until = max(common, began + self._interval_s)
        return until - now

    @property
    def busy(self) -> int:
        """How many shards are busy."""
        now = time.monotonic()
        return sum(now - began < BUSY_SECONDS for began in self._began_at.values())


GATHER_SECONDS = 0.003
"""How long the first of several busy shards waits for the others, which begin at the same moment."""
APART_SECONDS = 5.0
"""How long each shard commits by itself after a transaction that failed for all of them: one may be at fault."""


@dataclass(slots=True, eq=False)
class _Asked:
    part: Part
    pool: asyncpg.Pool
    connection: PoolConnectionProxy
    home: asyncpg.Pool | None
    done: asyncio.Future[Committed | None]


class Together:
    """Commits what several writers of a process have at the same time in one transaction for each database.

    It is a saving and nothing else: what a shard cannot commit with the others, for whatever reason, it commits by
    itself, as if it were alone.
    """

    def __init__(self, pace: Pace, settings: PersisterSettings, encryption: Encryption | None) -> None:
        self._pace = pace
        self._most_entries = settings.transaction_entries
        self._patience_s = settings.database_heartbeat.total_seconds()
        self._encryption = encryption
        self._signers: dict[int, TreeSigner] = {}
        self._waiting: list[_Asked] = []
        self._running: asyncio.Task[None] | None = None
        self._apart_until = 0.0

    async def commit(
        self, part: Part, pool: asyncpg.Pool, connection: PoolConnectionProxy, home: asyncpg.Pool | None
    ) -> Committed | None:
        """Commit this part with those of other shards; None = the shard has to do it by itself. Raises nothing.

        Args:
            part: of one shard, which has no other one here.
            pool: of the database that has the shard.
            connection: of that pool; nobody else uses it meanwhile.
            home: keeps the signs of life, when the shard is in another database.
        """
        self._signers[part.shard] = part.signer
        if self._pace.busy < 2 or time.monotonic() < self._apart_until:
            return None
        asked = _Asked(part, pool, connection, home, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await asked.done

    def forget(self) -> None:
        """Forget the trees of all shards: a connection was lost, and the next one may lead to another server."""
        for signer in self._signers.values():
            signer.forget()

    async def _run(self) -> None:
        waiting: list[_Asked] = []
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_SECONDS)
                waiting, self._waiting = self._waiting, []
                by_pool: dict[asyncpg.Pool, list[_Asked]] = {}
                for asked in waiting:
                    by_pool.setdefault(asked.pool, []).append(asked)
                await asyncio.gather(*map(self._commit, by_pool.values()))
        finally:
            self._running = None
            for asked in (*waiting, *self._waiting):
                _answer(asked, None)
            self._waiting.clear()

    async def _commit(self, group: Sequence[_Asked]) -> None:
        fitting = self._fitting(group)
        done: dict[int, Committed] = {}
        if len(fitting) > 1:
            first = fitting[0]
            try:
                with unasked_cancel_fails():
                    async with asyncio.timeout(self._patience_s):
                        parts = [asked.part for asked in fitting]
                        done = await commit_together(first.connection, parts, self._encryption, first.home)
            except Exception as error:
                self._apart_until = time.monotonic() + APART_SECONDS
                _log.info("shards_committed_apart", shards=len(fitting), reason=reason_of(error))
        for asked in group:
            _answer(asked, done.get(asked.part.shard))

    def _fitting(self, group: Sequence[_Asked]) -> list[_Asked]:
        """Return those that still wait and fit into one transaction, in the order in which heads are locked."""
        fitting: list[_Asked] = []
        entries = 0
        for asked in sorted(group, key=lambda one: one.part.shard):
            more = sum(message.entries for message in asked.part.messages)
            if not asked.done.done() and entries + more <= self._most_entries:
                fitting.append(asked)
                entries += more
        return fitting


def _answer(asked: _Asked, done: Committed | None) -> None:
    if not asked.done.done():
        asked.done.set_result(done)


@dataclass(slots=True)
class Writer:
    """Writes the log of one shard. One at a time is active (single active consumer), others stand by.

    Order is the queue's. At least once from the broker, once in the log: a batch that comes again is known by
    its number. While the database is away nothing is taken beyond the unacknowledged batches, and `is_ready`
    is false.
    """

    shard: int
    bus: Bus
    databases: LogDatabases
    settings: PersisterSettings
    signer: TreeSigner
    pace: Pace
    encryption: Encryption | None = None
    last_resort: LastResort | None = None
    together: Together | None = None
    """Commits for several shards at once; None = this is the only one."""
    counts: WriterCounts = field(default_factory=WriterCounts)
    _is_consuming: bool = False
    _is_failing: bool = False
    _pool: asyncpg.Pool | None = None
    """Of the database that has the shard, by the last look; the connection is one of it."""
    _connection: PoolConnectionProxy | None = None

    @property
    def is_ready(self) -> bool:
        """It consumes, its connection to the database stands, and the last transaction was committed."""
        return self._is_consuming and stands(self._connection) and not self._is_failing

    async def run(self, stop: asyncio.Event) -> None:
        """Write until `stop` is set; then what the broker has handed over is written and acknowledged.

        Raises:
            LogStopped: what only an operator can mend; the batches stay in the queue.
        """
        bind_contextvars(shard=self.shard)
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, stop)
        try:
            while not stop.is_set():
                try:
                    queue = log_queue(self.shard)
                    watch = None if self.last_resort is None else self.last_resort.watch(self.bus, queue)
                    with unasked_cancel_fails():
                        async with self.bus.subscribe(
                            queue, prefetch=self.settings.log_prefetch, watch=watch
                        ) as subscription:
                            backoff.reset()
                            await self._consume(subscription, stop)
                except BusError as error:
                    self._is_consuming = False
                    if backoff.is_fresh or not isinstance(error, BusUnavailable):
                        _log.warning("log_subscription_lost", reason=str(error))
                    await backoff.wait()
        except Exception as error:
            _log.critical("log_stopped", reason=str(error))
            raise
        finally:
            self._is_consuming = False
            await self._disconnect()

    async def _consume(self, subscription: Subscription, stop: asyncio.Event) -> None:
        waiting: deque[Received] = deque()
        self._is_consuming = True
        async with _Stoppable(stop, partial(self.bus.depth, log_queue(self.shard))) as stoppable:
            await self._connect_at_last(stop)
            left = self.settings.log_prefetch
            while not stop.is_set() or (left > 0 and stands(self._connection)):
                await stoppable.wait(self.pace.rest(self.shard))
                deliveries = await stoppable.receive(subscription)
                if stop.is_set():
                    left = left - len(deliveries) if deliveries else 0  # others may go on publishing: not forever
                for delivery in deliveries:
                    with delivery.read_alone():
                        waiting.append(read_message(self.shard, delivery))
                self.pace.begin(self.shard)
                while waiting:
                    messages = self._gather(waiting)
                    async with taken_alone([messages[0].delivery]):
                        done = await self._commit_at_last(messages, stop)
                    if done:
                        await subscription.ack(messages[done - 1].delivery, multiple=True)
                    elif stop.is_set():
                        return
                    for _ in range(done):
                        waiting.popleft()

    def _gather(self, waiting: Iterable[Received]) -> list[Received]:
        """Return what one transaction takes: whole batches up to the limit of entries, at least one; never waits."""
        messages: list[Received] = []
        entries = 0
        for message in waiting:
            entries += message.entries
            if messages and entries > self.settings.transaction_entries:
                break
            messages.append(message)
        return messages

    async def _commit_at_last(self, messages: list[Received], stop: asyncio.Event) -> int:
        """Commit, however long the database is away; the number of messages done, 0 when told to stop."""
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, stop)
        while True:
            try:
                with unasked_cancel_fails():
                    connection = await self._connect()
                began = time.monotonic()
                # A time-out on our side too: the server's own do not help when the network swallows the
                # answer.
                patience = 3 * self.settings.database_heartbeat.total_seconds()
                with unasked_cancel_fails(), in_transaction(self.shard, messages):
                    async with asyncio.timeout(patience):
                        done = await self._commit(connection, messages)
            except DATABASE_AWAY as error:
                self._is_failing = True
                await self._note_failure(error)
                messages = messages[:1]  # less at a time, should the size have been the reason
                await backoff.wait()
                if stop.is_set():
                    return 0
                continue
            self._is_failing = False
            self.counts.add(done)
            tell_committed(messages[: done.messages])
            count_commit(messages[: done.messages], time.monotonic() - began)
            return done.messages

    async def _commit(self, connection: PoolConnectionProxy, messages: list[Received]) -> Committed:
        is_usual = not self._is_failing and messages[0].delivery.risk is None
        if self.together is not None and self._pool is not None and is_usual:
            part = Part(self.shard, messages, self.signer)
            done = await self.together.commit(part, self._pool, connection, self._home)
            if done is not None:
                return done
        return await commit(connection, self.shard, messages, self.signer, self.encryption, self._home)

    async def _connect_at_last(self, stop: asyncio.Event) -> None:
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S, stop)
        while not stop.is_set():
            try:
                with unasked_cancel_fails():
                    await self._connect()
                return
            except DATABASE_AWAY as error:
                await self._note_failure(error)
                await backoff.wait()

    async def _connect(self) -> PoolConnectionProxy:
        if not stands(self._connection):
            await self._disconnect()
        if self._connection is None:
            self.signer.forget()
            if self.together is not None:
                self.together.forget()
            self._pool = await self.databases.find(self.shard)
            self._connection = await take_connection(self._pool, self.settings.database_heartbeat)
        return self._connection

    @property
    def _home(self) -> asyncpg.Pool | None:
        """Home, when another database has the shard."""
        return None if self._pool in (None, self.databases.home) else self.databases.home

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pool is not None:
            await drop_connection(self._pool, connection)

    async def _note_failure(self, error: Exception) -> None:
        self.counts.failures += 1
        pool = self._pool or self.databases.home
        reason = first_line(await note_failure(pool, error))
        _log.warning("log_database_away", reason=reason)
        await self._disconnect()


class _Stoppable:
    """Receives until told to stop: an idle queue must not hold a service that wants to leave.

    `ask` asks the broker, whose answer comes behind what it has sent before on this connection.
    """

    def __init__(self, stop: asyncio.Event, ask: Callable[[], Awaitable[object]]) -> None:
        self._stopped = asyncio.ensure_future(stop.wait())
        self._ask = ask

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.cancel()

    async def wait(self, seconds: float) -> None:
        """Wait for the rest of the interval, or until told to stop."""
        if seconds > 0:
            await asyncio.wait({self._stopped}, timeout=seconds)

    async def receive(self, subscription: Subscription) -> list[Delivery]:
        """Return what the broker hands over; once told to stop only what it has handed over already."""
        receiving = asyncio.ensure_future(subscription.receive(max_bytes=_MAX_BYTES))
        try:
            await asyncio.wait({receiving, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():  # it may still be on its way here
                await self._ask()
                await asyncio.wait({receiving}, timeout=_HANDED_OVER_SECONDS)
        finally:
            is_late = not receiving.done()
            await cancelled(receiving)
        return [] if is_late and receiving.cancelled() else receiving.result()

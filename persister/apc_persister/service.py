"""The persister: one writer a shard, until told to stop; sums, tree and projections follow beside them."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import cast

import asyncpg
from prometheus_client import Gauge

from apc_bus.concurrency import Backoff, Health, cancelled, keep_running, reason_of
from apc_bus.database import DATABASE_AWAY, check_durability, problems_of
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus
from apc_bus.settings import PersisterSettings
from apc_bus.settings.database import HOME
from apc_bus.telemetry import get_logger
from apc_contracts.errors import ApcError
from apc_log.placement import LogDatabases
from apc_log.queries.health import days_left, read_growth, read_segments_ahead
from apc_persister.database.guard import read_guard, warn_of_guard
from apc_persister.database.migrate import SCHEMA_REVISION, read_revision
from apc_persister.database.several import check_name
from apc_persister.encryption import Encryption
from apc_persister.errors import PoolTooSmall, SchemaMissing, SchemaUnknown, TreeBroken
from apc_persister.evidence.checkpoint import Signer, load_signer
from apc_persister.evidence.export import Exporter, publish_gauges
from apc_persister.evidence.tree import TreeSigner
from apc_persister.follower import YOUNG, Follower
from apc_persister.transaction import lock_head
from apc_persister.writer import Pace, Together, Writer, follow_writers

# Adds runs at rest to the sums that a lineage summary of the whole log is read from (migrations/sql/0111_uses.sql).

REST = timedelta(minutes=1)
"""A run that has had no verdict on a TRANSFER or an EVAL for so long is at rest."""
_INTERVAL = timedelta(seconds=20)
_LONGEST_PAUSE_S = 300.0
_SUM = "SELECT apc_log.sum_runs($1, 1)"

log = get_logger(__name__)


class RunSums:
    """Looks at every interval for runs that have come to rest, and adds one a transaction.

    A summary is exact without it, and slower: runs that are not added are read use by use. The database lets one
    process at a time do it.
    """

    def __init__(self, pool: asyncpg.Pool, *, rest: timedelta = REST, interval: timedelta = _INTERVAL) -> None:
        self._pool = pool
        self._rest = rest
        self._interval_s = interval.total_seconds()
        self.summed = 0
        """Runs that this process has added."""

    async def run(self, stop: asyncio.Event) -> None:
        """Sum until `stop` is set."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while not stop.is_set():
            try:
                while not stop.is_set() and await self._pool.fetchval(_SUM, datetime.now(UTC) - self._rest):
                    self.summed += 1
                backoff.reset()
                pause_s = self._interval_s
            except DATABASE_AWAY as error:
                if backoff.is_fresh:
                    log.warning("runs_not_summed", reason=reason_of(error))
                pause_s = backoff.take()
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass


# Takes into the tree what was logged by SQL (an erasure, a maintenance) when no batch comes to take it along.

_LONGEST_BACKFILL_PAUSE_S = 30.0
_WAITING = """
SELECT shard FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
WHERE next_seq - 1 > coalesce(tree_size, 0) AND shard < $1 ORDER BY shard
"""


class TreeBackfill:
    """Looks at every interval for entries of a database that are not in the tree, and attests them.

    The writer does the same with its next transaction; the lock on the shard's head lets one of them at a time.
    """

    def __init__(
        self, pool: asyncpg.Pool, signer: Signer, shards: int, interval: timedelta, patience: timedelta
    ) -> None:
        """Prepare the backfill; the server ends a statement after `patience`, so the writer waits no longer."""
        self._pool = pool
        self._signer = signer
        self._shards = shards
        self._interval_s = interval.total_seconds()
        self._patience_ms = int(patience.total_seconds() * 1000)

    async def run(self, stop: asyncio.Event) -> None:
        """Attest until `stop` is set. Raises TreeBroken when a tree does not fit its rows: the writer stops too."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_BACKFILL_PAUSE_S)
        while not stop.is_set():
            try:
                for row in await self._pool.fetch(_WAITING, self._shards):
                    await self._attest(row["shard"])
                backoff.reset()
                pause_s = self._interval_s
            except TreeBroken as error:
                log.critical("backfill_failed", reason=str(error))
                raise
            except DATABASE_AWAY as error:
                if backoff.is_fresh:
                    log.warning("backfill_failed", reason=reason_of(error))
                pause_s = backoff.take()
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

    async def _attest(self, shard: int) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                f"SET LOCAL statement_timeout = {self._patience_ms};"
                f"SET LOCAL idle_in_transaction_session_timeout = {self._patience_ms}"
            )
            head, _ = await lock_head(connection, shard)
            await TreeSigner(shard, self._signer).attest(connection, head.next_seq, [])


# What the log has room for: segments open ahead, the size of the database, and when it is full.

_LOOK_S = 60.0
_AHEAD = Gauge("apc_log_segments_ahead", "Segments that are open behind the one that is written to", ["shard"])
_BYTES = Gauge("apc_log_database_bytes", "Size of the database")
_DAYS = Gauge(
    "apc_log_database_days_left",
    "Days until the database has APC_DATABASE_CAPACITY bytes, by what came in the last day; +Inf without a capacity",
)
_DAYS.set(math.inf)


class LogRoom:
    """Looks each minute at the room that the log has, and publishes it as gauges of this process."""

    def __init__(self, databases: LogDatabases, capacity: int | None) -> None:
        """Prepare it; home may have `capacity` bytes, None = nobody said."""
        self._databases = databases
        self._capacity = capacity

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set."""
        while not stop.is_set():
            with suppress(*DATABASE_AWAY):
                await self.look()
            try:
                await asyncio.wait_for(stop.wait(), _LOOK_S)
            except TimeoutError:
                pass

    async def look(self) -> None:
        """Publish what there is now: segments of every database, and the size of home."""
        growth = await read_growth(self._databases.home)
        _BYTES.set(growth["size"])
        _DAYS.set(days_left(growth, self._capacity))
        await self._databases.look()
        for name, pool in self._databases.pools.items():
            with suppress(*DATABASE_AWAY):
                for row in await read_segments_ahead(pool, YOUNG):
                    if self._databases.place_of(row["shard"]).database == name:
                        _AHEAD.labels(row["shard"]).set(row["ahead"])


class DatabaseKeeper:
    """What is done beside the writers for one database: export, tree, sums and projections, of all its shards."""

    def __init__(self, name: str, pool: asyncpg.Pool, settings: PersisterSettings, signer: Signer) -> None:
        """Prepare it. Raises ExportFailed: APC_CHECKPOINTS_URL names no place that can be used."""
        target, interval = settings.checkpoints_target, settings.checkpoint_interval
        self._of = "" if name == HOME else f" of database {name}"
        self.exporter = Exporter(pool, settings.shards, target, interval)
        self._backfill = TreeBackfill(pool, signer, settings.shards, interval, settings.database_heartbeat)
        self._sums = RunSums(pool)
        self._follower = Follower(pool, segment_entries=settings.segment_entries)

    @property
    def tasks(self) -> dict[str, Callable[[asyncio.Event], Awaitable[None]]]:
        """What runs until it is told to stop, by what it is called; the export is not among it."""
        return {
            f"the backfill of the tree{self._of}": self._backfill.run,
            f"the sums of runs at rest{self._of}": self._sums.run,
            f"the follower of the log{self._of}": self._follower.run,
        }

    @property
    def export_name(self) -> str:
        """What the export is called."""
        return f"the export of checkpoints{self._of}"

    async def catch_up(self) -> None:
        """Fill the projections with what was written last, while the last checkpoints are exported."""
        try:
            await asyncio.wait_for(self._follower.catch_up(), _LAST_PIECES_SECONDS)
        except DATABASE_AWAY as error:
            log.warning("projections_lag", reason=reason_of(error))


_LAST_EXPORT_SECONDS = 5.0
"""How long the last export may take: a database that is frozen never answers; the next start exports the rest."""
_LAST_PIECES_SECONDS = 5.0
"""How long the projections may be filled at the end; the next start fills the rest."""


class Persister:
    """The writers of one process: of all shards, or of those that it serves.

    Checkpoints of all shards are exported and attested by each process, behind locks: a killed writer's by the others.

    Raises:
        LogKeyMissing, LogKeyUnusable: no key to sign checkpoints with.
        ExportFailed: APC_CHECKPOINTS_URL names no place that can be used.
    """

    def __init__(
        self,
        settings: PersisterSettings,
        bus: Bus,
        pool: asyncpg.Pool,
        *,
        databases: LogDatabases | None = None,
        capacity: int | None = None,
    ) -> None:
        """Prepare it.

        Args:
            settings: of the service.
            bus: brings the log batches.
            pool: of home.
            databases: home and the others; None = there is only home.
            capacity: bytes that home may have; None = nobody said.
        """
        signer = load_signer(settings)
        encryption = Encryption.of(settings)
        self._bus = bus
        self._databases = databases or LogDatabases(pool)
        self._settings = settings
        self._health = Health()
        last_resort = LastResort(settings.data_dir, DATABASE_AWAY)
        pace = Pace(settings.commit_interval)
        together = Together(pace, settings, encryption) if len(settings.own_shards) > 1 else None
        self.writers = tuple(
            Writer(
                shard,
                bus,
                self._databases,
                settings,
                TreeSigner(shard, signer),
                pace,
                encryption,
                last_resort,
                together,
            )
            for shard in settings.own_shards
        )
        self._keepers = [DatabaseKeeper(name, one, settings, signer) for name, one in self._databases.pools.items()]
        self.exporter = self._keepers[0].exporter
        self._room = LogRoom(self._databases, capacity)
        publish_gauges([one.exporter for one in self._keepers])
        follow_writers(self)

    @property
    def is_ready(self) -> bool:
        """Every shard is consumed, its database answers, and the bus works."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """What stands against being ready, a sentence each; from any thread."""
        unwritten = [f"the log of shard {one.shard} is not written" for one in self.writers if not one.is_ready]
        away = [problem for pool in self._databases.known_pools for problem in problems_of(pool)]
        return unwritten + away + self._health.problems + self._bus.problems

    async def run(self, stop: asyncio.Event) -> None:
        """Check the database, then write until `stop` is set or no writer is left.

        A shard that stops leaves the others running; its error is raised at the end, and `is_ready` is false. What
        fails for a reason that nobody foresaw is begun again with back-off, and `problems` tells of it.

        Raises:
            DatabaseNotDurable: committed rows could be lost (unless settings allow it).
            SchemaMissing, SchemaUnknown: run `apc migrate`, or upgrade.
            DatabaseMisnamed: APC_DATABASE_URL or APC_DATABASES leads to another database of the log.
            PoolTooSmall: one connection a shard, and one more.
            LogStopped: a shard met what only an operator can mend.
        """
        await self._check()
        log.info("persister_started", shards=len(self.writers))
        are_done = asyncio.Event()
        exporting = [
            asyncio.create_task(self._keep(one.export_name, one.exporter.run, are_done)) for one in self._keepers
        ]
        work = {name: run for one in self._keepers for name, run in one.tasks.items()}
        work["the look at the log's room"] = self._room.run
        beside = [asyncio.create_task(self._keep(name, run, stop)) for name, run in work.items()]
        try:
            writers = (self._keep(f"the log writer of shard {one.shard}", one.run, stop) for one in self.writers)
            results = await asyncio.gather(*writers, return_exceptions=True)
        finally:
            # In this order: what is attested at the end is exported too.
            await cancelled(*beside)
            are_done.set()
            await asyncio.gather(*(one.catch_up() for one in self._keepers))
            await asyncio.wait(exporting, timeout=_LAST_EXPORT_SECONDS)
            await cancelled(*exporting)
        log.info("persister_stopped")
        for result in results:
            if result is not None:
                raise result

    async def _keep(self, task: str, run: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> None:
        """Keep a task at work; errors that we have a name for are an operator's to mend, and are raised."""
        await keep_running(lambda: run(stop), task=task, health=self._health, stop=stop, fatal=(ApcError,))

    async def _check(self) -> None:
        await self._check_database(HOME, self._databases.home)
        for name, pool in self._databases.pools.items():
            try:
                if name != HOME:
                    await self._check_database(name, pool)
            except DATABASE_AWAY as error:
                log.warning("database_awaited", database=name, reason=reason_of(error))

    async def _check_database(self, name: str, pool: asyncpg.Pool) -> None:
        size = pool.get_max_size()
        if size <= len(self.writers):
            raise PoolTooSmall(size, len(self.writers))
        async with pool.acquire() as connection:
            if not self._settings.allow_undurable_database:
                # The proxy has every method of a connection; the annotation asks for the class.
                await check_durability(cast(asyncpg.Connection, connection))
            revision = await read_revision(connection)
            if revision is None or revision < SCHEMA_REVISION:
                raise SchemaMissing(revision)
            if revision > SCHEMA_REVISION:
                raise SchemaUnknown(revision)
            await check_name(connection, name)
            warn_of_guard(await read_guard(connection))


async def serve_persister(settings: PersisterSettings, bus: Bus, pool: asyncpg.Pool, stop: asyncio.Event) -> None:
    """Run the persister of a log with one database until `stop` is set; raises as `Persister.run`."""
    await Persister(settings, bus, pool).run(stop)

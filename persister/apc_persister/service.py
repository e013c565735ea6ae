"""The service: one writer a shard, until told to stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import asyncpg
import structlog

from apc_bus.concurrency import cancelled
from apc_bus.database import DATABASE_AWAY, check_durability, problems_of
from apc_bus.last_resort import LastResort
from apc_bus.port import Bus
from apc_bus.settings import PersisterSettings
from apc_bus.supervision import Health, keep_running
from apc_contracts.errors import ApcError
from apc_persister.database.guard import read_guard, warn_of_guard
from apc_persister.database.migrate import SCHEMA_REVISION, read_revision
from apc_persister.encryption import Encryption
from apc_persister.errors import PoolTooSmall, SchemaMissing, SchemaUnknown
from apc_persister.evidence.export.exporter import Exporter
from apc_persister.evidence.export.gauges import publish_gauges
from apc_persister.evidence.tree.backfill import TreeBackfill
from apc_persister.evidence.tree.checkpoint import load_signer
from apc_persister.evidence.tree.tree_signer import TreeSigner
from apc_persister.run_sums import RunSums
from apc_persister.writing.metrics import follow_writers
from apc_persister.writing.writer import Writer

log = structlog.get_logger(__name__)


class Persister:
    """The writers of one process: of all shards, or of those that it serves.

    Checkpoints of all shards are exported and attested by each process, behind locks: a killed writer's by the others.

    Raises:
        LogKeyMissing, LogKeyUnusable: no key to sign checkpoints with.
        ExportFailed: APC_CHECKPOINTS_URL names no place that can be used.
    """

    def __init__(self, settings: PersisterSettings, bus: Bus, pool: asyncpg.Pool) -> None:
        signer = load_signer(settings)
        encryption = Encryption.of(settings)
        self._bus = bus
        self._pool = pool
        self._settings = settings
        self._health = Health()
        last_resort = LastResort(settings.data_dir, DATABASE_AWAY)
        self.writers = tuple(
            Writer(shard, bus, pool, settings, TreeSigner(shard, signer), encryption, last_resort)
            for shard in settings.own_shards
        )
        self.exporter = Exporter(pool, settings.shards, settings.checkpoints_target, settings.checkpoint_interval)
        self._backfill = TreeBackfill(
            pool, signer, settings.shards, settings.checkpoint_interval, settings.database_heartbeat
        )
        self._sums = RunSums(pool)
        publish_gauges(self.exporter)
        follow_writers(self)

    @property
    def is_ready(self) -> bool:
        """Every shard is consumed, its database answers, and the bus works."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """What stands against being ready, a sentence each; from any thread."""
        found = [f"the log of shard {one.shard} is not written" for one in self.writers if not one.is_ready]
        return found + problems_of(self._pool) + self._health.problems + self._bus.problems

    async def run(self, stop: asyncio.Event) -> None:
        """Check the database, then write until `stop` is set or no writer is left.

        A shard that stops leaves the others running; its error is raised at the end, and `is_ready` is false. What
        fails for a reason that nobody foresaw is begun again with back-off, and `problems` tells of it.

        Raises:
            DatabaseNotDurable: committed rows could be lost (unless settings allow it).
            SchemaMissing, SchemaUnknown: run `apc migrate`, or upgrade.
            PoolTooSmall: one connection a shard, and one more.
            LogStopped: a shard met what only an operator can mend.
        """
        await self._check()
        log.info("persister_started", shards=len(self.writers))
        are_done = asyncio.Event()
        exporting = asyncio.create_task(self._keep("the export of checkpoints", self.exporter.run, are_done))
        attesting = asyncio.create_task(self._keep("the backfill of the tree", self._backfill.run, stop))
        summing = asyncio.create_task(self._keep("the sums of runs at rest", self._sums.run, stop))
        try:
            writers = (self._keep(f"the log writer of shard {one.shard}", one.run, stop) for one in self.writers)
            results = await asyncio.gather(*writers, return_exceptions=True)
        finally:
            # In this order: what is attested at the end is exported too.
            await cancelled(attesting, summing)
            are_done.set()
            await asyncio.gather(exporting, return_exceptions=True)
        log.info("persister_stopped")
        for result in results:
            if result is not None:
                raise result

    async def _keep(self, task: str, run: Callable[[asyncio.Event], Awaitable[None]], stop: asyncio.Event) -> None:
        """Keep a task at work; errors that we have a name for are an operator's to mend, and are raised."""
        await keep_running(lambda: run(stop), task=task, health=self._health, stop=stop, fatal=(ApcError,))

    async def _check(self) -> None:
        size = self._pool.get_max_size()
        if size <= len(self.writers):
            raise PoolTooSmall(size, len(self.writers))
        async with self._pool.acquire() as connection:
            if not self._settings.allow_undurable_database:
                # The proxy has every method of a connection; the annotation asks for the class.
                await check_durability(cast(asyncpg.Connection, connection))
            found = await read_revision(connection)
            if found is None or found < SCHEMA_REVISION:
                raise SchemaMissing(found)
            if found > SCHEMA_REVISION:
                raise SchemaUnknown(found)
            warn_of_guard(await read_guard(connection))


async def serve_persister(settings: PersisterSettings, bus: Bus, pool: asyncpg.Pool, stop: asyncio.Event) -> None:
    """Run the persister until `stop` is set; raises as `Persister.run`."""
    await Persister(settings, bus, pool).run(stop)

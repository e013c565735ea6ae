"""What the tests of the log stand on: a scripted orchestrator, a broker, a database, and a persister that runs on
them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import asyncpg
from tests.support.log.gate import ScriptedGate
from tests.support.waiting import until

from apc_bus.port import Bus
from apc_bus.settings import PersisterSettings
from apc_bus.topology import log_queue
from apc_persister.service import Persister

_ENTRY_TABLES = (
    "agent_packets",
    "packet_events",
    "packet_lineage",
    "coordination_events",
    "packet_conflicts",
    "registry_events",
    "log_events",
)


@dataclass(slots=True)
class LogBench:
    """A log under test; `bus` is the persister's."""

    gate: ScriptedGate
    bus: Bus
    pool: asyncpg.Pool
    settings: PersisterSettings = field(default_factory=PersisterSettings)
    _running: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Persister]:
        """Run a persister; leaving stops it and raises what it ran into."""
        persister = Persister(self.settings, self.bus, self.pool)
        stop = asyncio.Event()
        self._running = asyncio.create_task(persister.run(stop))
        try:
            yield persister
        finally:
            stop.set()
            await self._running

    async def write(self) -> Persister:
        """Run a persister until everything that waits in the queues is committed, or it stopped with an error."""
        waiting = [(await self.bus.depth(log_queue(shard))).messages for shard in range(self.settings.shards)]
        async with self.writing() as persister:
            await until(
                lambda: (
                    self._is_over
                    or all(
                        writer.counts.messages >= messages
                        for writer, messages in zip(persister.writers, waiting, strict=True)
                    )
                )
            )
        return persister

    @property
    def _is_over(self) -> bool:
        return self._running is not None and self._running.done()

    async def count(self, table: str) -> int:
        """Rows of a table of the log."""
        count: int = await self.pool.fetchval(f"SELECT count(*) FROM apc_log.{table}")
        return count

    def has_rows(self, table: str, count: int) -> Callable[[], Awaitable[bool]]:
        """Return the condition that a table of the log has at least so many rows."""

        async def holds() -> bool:
            return await self.count(table) >= count

        return holds

    async def numbers(self) -> list[int]:
        """Return the numbers of all entries of shard 0, sorted."""
        union = " UNION ALL ".join(f"SELECT seq FROM apc_log.{table} WHERE shard = 0" for table in _ENTRY_TABLES)
        return [row[0] for row in await self.pool.fetch(f"{union} ORDER BY seq")]


async def lift_guard(connection: asyncpg.Connection) -> None:
    """Do what only a superuser can, so that a test may falsify the log: switch the event triggers off permanently."""
    for row in await connection.fetch("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'apc_guard_%'"):
        await connection.execute(f"ALTER EVENT TRIGGER {row[0]} DISABLE")

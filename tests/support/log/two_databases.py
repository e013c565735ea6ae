"""Home and another database of a log, with log writers of two shards."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
from tests.support.log import ScriptedGate

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_log.heads import read_ends
from apc_log.offline_verifier import PublicKey
from apc_log.placement import LogDatabases
from apc_persister.database.several import place_shard
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.service import Persister

SHARDS = 2


@dataclass
class TwoDatabases:
    """Home and east, and log writers of two shards on the in-process broker."""

    broker: InMemoryBroker
    home: asyncpg.Pool
    databases: LogDatabases

    @property
    def east(self) -> asyncpg.Pool:
        return self.databases.pools["east"]

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Persister]:
        """Run a persister; leaving stops it and raises what it ran into."""
        settings = PersisterSettings(shards=SHARDS, serve_shards=None)
        bus = self.broker.connect("persister")
        persister, stop = Persister(settings, bus, self.home, databases=self.databases), asyncio.Event()
        running = asyncio.create_task(persister.run(stop))
        try:
            yield persister
        finally:
            stop.set()
            await running

    async def place(self, shard: int, name: str) -> str:
        """Place a shard as `apc shard place` does."""
        async with self.home.acquire() as home, self.east.acquire() as east:
            return await place_shard({"home": home, "east": east}, shard, name)

    def gate(self, shard: int) -> ScriptedGate:
        """Return an orchestrator by script."""
        return ScriptedGate(self.broker.connect("orchestrator"), shard)

    def has_entries(self, pool: asyncpg.Pool, shard: int, count: int) -> Callable[[], Awaitable[bool]]:
        """Return a condition: a database has so many entries of a shard."""

        async def holds() -> bool:
            return (await read_ends(pool)).get(shard) == count

        return holds


def key_of(shard: int) -> PublicKey:
    return load_signer(PersisterSettings()).trusted(shard)[0]

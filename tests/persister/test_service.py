"""The service refuses a database that cannot hold the log."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log import until
from tests.support.servers import PostgresServer

from apc_bus.database import open_pool
from apc_bus.errors import DatabaseNotDurable
from apc_bus.in_memory import InMemoryBroker
from apc_persister import Persister, PersisterSettings, serve_persister
from apc_persister.errors import PoolTooSmall, SchemaMissing, SchemaUnknown, TreeBroken
from apc_persister.evidence.export import Exporter
from apc_persister.service import TreeBackfill


@pytest.fixture
async def empty_pool(postgres_server: PostgresServer) -> AsyncIterator[asyncpg.Pool]:
    """A pool on a database without a schema."""
    name = f"apc_test_{secrets.token_hex(6)}"
    await postgres_server.drop(name)
    await postgres_server._execute(f"CREATE DATABASE {name} TEMPLATE template0")
    pool = await open_pool(postgres_server.url_of(name), max_size=2)
    yield pool
    await pool.close()
    await postgres_server.drop(name)


async def serve(broker: InMemoryBroker, pool: asyncpg.Pool, settings: PersisterSettings | None = None) -> None:
    stop = asyncio.Event()
    stop.set()
    await serve_persister(settings or PersisterSettings(), broker.connect("persister"), pool, stop)


async def test_a_database_that_is_not_migrated(memory_broker: InMemoryBroker, empty_pool: asyncpg.Pool) -> None:
    with pytest.raises(SchemaMissing, match="run `apc migrate`"):
        await serve(memory_broker, empty_pool)


async def test_a_database_of_a_newer_release(memory_broker: InMemoryBroker, pool: asyncpg.Pool) -> None:
    await pool.execute("UPDATE apc_guard.alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaUnknown, match="9999"):
        await serve(memory_broker, pool)


async def test_a_database_that_may_lose_commits(memory_broker: InMemoryBroker, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    database = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {database} SET synchronous_commit = off")
    await connection.close()
    pool = await open_pool(postgres_url, max_size=2)
    try:
        with pytest.raises(DatabaseNotDurable, match="synchronous_commit"):
            await serve(memory_broker, pool)
        await serve(memory_broker, pool, PersisterSettings(allow_undurable_database=True))
    finally:
        await pool.close()


async def test_a_pool_that_the_writers_would_use_up(memory_broker: InMemoryBroker, pool: asyncpg.Pool) -> None:
    with pytest.raises(PoolTooSmall, match="APC_DATABASE_POOL to 10"):
        await serve(memory_broker, pool, PersisterSettings(shards=8))


@pytest.mark.parametrize(
    ("work", "name"),
    [(Exporter, "the export of checkpoints"), (TreeBackfill, "the backfill of the tree")],
)
async def test_no_task_of_the_service_dies_unseen(
    memory_broker: InMemoryBroker, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch, work: type, name: str
) -> None:
    attempts = []

    async def fail(self: object, stop: asyncio.Event) -> None:
        attempts.append(persister.problems)
        if len(attempts) < 3:
            raise KeyError("nobody foresaw this")
        await stop.wait()

    monkeypatch.setattr(work, "run", fail)
    persister, stop = Persister(PersisterSettings(), memory_broker.connect("persister"), pool), asyncio.Event()
    running = asyncio.create_task(persister.run(stop))
    try:
        await until(lambda: _is_told(persister, f"{name} has failed: 'nobody foresaw this'"))
        await until(lambda: persister.is_ready)
        assert len(attempts) == 3
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


async def test_a_tree_that_does_not_fit_is_told_though_nobody_writes(
    memory_broker: InMemoryBroker, pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(self: object, shard: int) -> None:
        raise TreeBroken(0, "entry 5 is missing")

    await pool.execute("INSERT INTO apc_log.shards (shard, epoch, batch_no, next_seq) VALUES (0, 0, 0, 2)")
    monkeypatch.setattr(TreeBackfill, "_attest", refuse)
    persister, stop = Persister(PersisterSettings(), memory_broker.connect("persister"), pool), asyncio.Event()
    running = asyncio.create_task(persister.run(stop))
    try:
        await until(lambda: _is_told(persister, "the backfill of the tree has failed: log of shard 0 stopped"))
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


def _is_told(persister: Persister, sentence: str) -> bool:
    return any(one.startswith(sentence) for one in persister.problems)

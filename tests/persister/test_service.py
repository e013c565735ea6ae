"""The service refuses a database that cannot hold the log."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest

from apc_bus.database import open_pool
from apc_bus.errors import DatabaseNotDurable
from apc_bus.memory import MemoryBroker
from apc_bus.testing import PostgresServer
from apc_persister import PersisterSettings, serve_persister
from apc_persister.errors import PoolTooSmall, SchemaMissing, SchemaUnknown


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


async def serve(broker: MemoryBroker, pool: asyncpg.Pool, settings: PersisterSettings | None = None) -> None:
    stop = asyncio.Event()
    stop.set()
    await serve_persister(settings or PersisterSettings(), broker.connect("persister"), pool, stop)


async def test_a_database_that_is_not_migrated(memory_broker: MemoryBroker, empty_pool: asyncpg.Pool) -> None:
    with pytest.raises(SchemaMissing, match="run `apc migrate`"):
        await serve(memory_broker, empty_pool)


async def test_a_database_of_a_newer_release(memory_broker: MemoryBroker, pool: asyncpg.Pool) -> None:
    await pool.execute("UPDATE apc_guard.alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaUnknown, match="9999"):
        await serve(memory_broker, pool)


async def test_a_database_that_may_lose_commits(memory_broker: MemoryBroker, postgres_url: str) -> None:
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


async def test_a_pool_that_the_writers_would_use_up(memory_broker: MemoryBroker, pool: asyncpg.Pool) -> None:
    with pytest.raises(PoolTooSmall, match="APC_DATABASE_POOL to 6"):
        await serve(memory_broker, pool, PersisterSettings(shards=4))

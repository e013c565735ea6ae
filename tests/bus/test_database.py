"""Pools: JSON as text, and one clear sentence when the database cannot be had."""

from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest
from tests.support.servers.ports import free_ports

from apc_bus.database import CONNECTION_LOST, DATABASE_AWAY, check_durability, open_pool
from apc_bus.errors import DatabaseNotDurable, DatabaseUnavailable


async def test_json_is_text(postgres_url: str) -> None:
    async with await open_pool(postgres_url, max_size=2) as pool:
        assert await pool.fetchval("SELECT $1::jsonb", '{"b": 1, "a": [null]}') == '{"a": [null], "b": 1}'
        assert await pool.fetchval("SELECT $1::json", '{"b":1}') == '{"b":1}'


async def test_the_server_is_durable(postgres_url: str) -> None:
    async with await open_pool(postgres_url, max_size=1) as pool, pool.acquire() as connection:
        await check_durability(connection)
        await connection.execute("SET synchronous_commit = off")
        with pytest.raises(DatabaseNotDurable, match=r"synchronous_commit off.*APC_ALLOW_UNDURABLE_DATABASE"):
            await check_durability(connection)


async def test_a_server_that_is_away() -> None:
    (port,) = free_ports(1)
    with pytest.raises(DatabaseUnavailable, match="does not answer"):
        await open_pool(f"postgresql://u@127.0.0.1:{port}/db", wait=timedelta(milliseconds=500))


async def test_a_database_that_does_not_exist(postgres_url: str) -> None:
    url = urlunsplit(urlsplit(postgres_url)._replace(path="/no_such_database"))
    with pytest.raises(DatabaseUnavailable, match="no_such_database"):
        await open_pool(url, wait=timedelta(seconds=30))


@pytest.mark.parametrize("url", ["nonsense", "http://host/db"])
async def test_a_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="APC_DATABASE_URL"):
        await open_pool(url, wait=timedelta(seconds=30))


@pytest.mark.parametrize("wrong", [asyncpg.UniqueViolationError, asyncpg.UndefinedTableError, asyncpg.DataError])
def test_a_wrong_statement_is_no_lost_connection(wrong: type[Exception]) -> None:
    assert issubclass(wrong, DATABASE_AWAY)
    assert not issubclass(wrong, CONNECTION_LOST)
    assert issubclass(asyncpg.AdminShutdownError, CONNECTION_LOST)

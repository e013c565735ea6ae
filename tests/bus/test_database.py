"""Pools: JSON as text, and one clear sentence when the database cannot be had."""

import logging
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from structlog.testing import capture_logs
from tests.support.failover.demotion import Demoted, Switch, by_way_of, place_of
from tests.support.servers.ports import free_ports
from tests.support.servers.proxy import Proxy
from tests.support.waiting import until

from apc_bus.database import DATABASE_AWAY, check_durability, connect, is_away, is_passing, open_pool, problems_of
from apc_bus.errors import DatabaseNotDurable, DatabaseUnavailable, PoolerUnsuitable, StatementTooSlow


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


@pytest.mark.parametrize(
    "wrong",
    [
        asyncpg.UniqueViolationError,
        asyncpg.UndefinedTableError,
        asyncpg.DataError,
        asyncpg.InvalidPasswordError,
        asyncpg.exceptions.ClientConfigurationError,
        asyncpg.UnsupportedClientFeatureError,
    ],
)
def test_a_wrong_statement_is_no_database_that_is_away(wrong: type[Exception]) -> None:
    assert not is_away(wrong("no"))
    assert not is_passing(wrong("no"))


@pytest.mark.parametrize(
    "away",
    [
        asyncpg.ReadOnlySQLTransactionError,
        asyncpg.AdminShutdownError,
        asyncpg.CrashShutdownError,
        asyncpg.CannotConnectNowError,
        asyncpg.TooManyConnectionsError,
        asyncpg.DiskFullError,
        asyncpg.OutOfMemoryError,
        asyncpg.ConnectionDoesNotExistError,
        asyncpg.InterfaceError,
        asyncpg.InternalClientError,
        asyncpg.InvalidSQLStatementNameError,
        asyncpg.DuplicatePreparedStatementError,
        PoolerUnsuitable,
        ConnectionRefusedError,
        TimeoutError,
    ],
)
def test_a_database_that_is_away(away: type[Exception]) -> None:
    assert is_away(away("gone"))
    assert is_passing(away("gone"))
    assert issubclass(away, DATABASE_AWAY)


@pytest.mark.parametrize(
    "given_up",
    [
        asyncpg.SerializationError,
        asyncpg.DeadlockDetectedError,
        asyncpg.QueryCanceledError,
        asyncpg.exceptions.ConfigurationLimitExceededError,
        StatementTooSlow,
    ],
)
def test_a_statement_that_the_server_gave_up_passes_and_says_nothing_of_the_server(given_up: type[Exception]) -> None:
    assert is_passing(given_up("again"))
    assert not is_away(given_up("again"))


async def test_a_demoted_server_is_left_with_all_connections(demoted: Demoted) -> None:
    """The pool's old connections stay at a server that refuses changes; the address leads to the new primary again."""
    pool = await demoted.pool(max_size=3)
    lent = [await pool.acquire() for _ in range(3)]
    for one in lent:
        await pool.release(one)
    await demoted.restore()
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await pool.execute("CREATE TABLE one ()")
    assert problems_of(pool) == ["the database is away: cannot execute CREATE TABLE in a read-only transaction"]
    await pool.execute("CREATE TABLE one ()")
    assert problems_of(pool) == []
    for one in [await pool.acquire() for _ in range(3)]:
        assert await one.fetchval("SHOW transaction_read_only") == "off"
        await pool.release(one)


async def test_a_pool_that_nobody_uses_learns_that_the_database_is_back(demoted: Demoted) -> None:
    pool = await demoted.pool()
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError):
        await pool.execute("CREATE TABLE one ()")
    await until(lambda: "the server is read-only" in "".join(problems_of(pool)))
    await demoted.restore()
    await until(lambda: problems_of(pool) == [])


async def test_a_read_only_server_is_refused_and_says_why(demoted: Demoted) -> None:
    with pytest.raises(asyncpg.ReadOnlySQLTransactionError, match="must lead to the primary"):
        await connect(demoted.url)
    with pytest.raises(DatabaseUnavailable, match=r"cannot be written to: the server is read-only: APC_DATABASE_URL"):
        await open_pool(demoted.url, wait=timedelta(milliseconds=200))
    reader = await connect(demoted.url, is_reader=True)
    await reader.close()
    await (await connect(f"{demoted.url}{'&' if '?' in demoted.url else '?'}target_session_attrs=any")).close()


async def test_a_list_of_servers_finds_the_primary(postgres_url: str) -> None:
    """A server that is off, and one that does not answer, are passed over."""
    (off,) = free_ports(1)
    async with Switch.open(None) as silent, Switch.open(place_of(postgres_url)) as primary:
        connection = await connect(by_way_of(postgres_url, off, silent.port, primary.port), patience=0.3)
        assert await connection.fetchval("SELECT 1") == 1
        await connection.close()
        url = urlsplit(by_way_of(postgres_url, off))
        named = url._replace(netloc="postgres@", query=f"host=127.0.0.1,127.0.0.1&port={off},{primary.port}")
        await (await connect(named.geturl())).close()


async def test_settings_hold_for_every_loan(postgres_url: str) -> None:
    pool = await open_pool(
        postgres_url, max_size=1, server_settings={"statement_timeout": "5s", "application_name": "it's"}
    )
    for _ in range(2):
        async with pool.acquire() as connection:
            assert await connection.fetchval("SHOW statement_timeout") == "5s"
            assert await connection.fetchval("SHOW application_name") == "it's"
            await connection.execute("SET statement_timeout = '1s'")
    await pool.close()


async def test_no_connection_compiles_plans(postgres_url: str) -> None:
    pool = await open_pool(postgres_url, max_size=1)
    for _ in range(2):
        async with pool.acquire() as connection:
            assert await connection.fetchval("SHOW jit") == "off"
            await connection.execute("SET jit = 'on'")
    await pool.close()
    single = await connect(postgres_url)
    assert await single.fetchval("SHOW jit") == "off"
    await single.close()


async def test_an_ended_connection_and_its_neighbours_are_replaced(postgres_url: str) -> None:
    pool = await open_pool(postgres_url, max_size=2)
    async with pool.acquire() as one, pool.acquire() as two:
        pids = [await one.fetchval("SELECT pg_backend_pid()"), await two.fetchval("SELECT pg_backend_pid()")]
    with pytest.raises((asyncpg.AdminShutdownError, asyncpg.ConnectionDoesNotExistError)):
        await pool.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert "terminating connection" in problems_of(pool)[0]
    assert await pool.fetchval("SELECT pg_backend_pid()") not in pids
    assert problems_of(pool) == []
    await pool.close()


async def test_asyncpg_leaves_it_to_the_pool_to_say_that_the_database_is_away(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would warn with a trace of thirty lines for each connection that it misses; who wants that sets its level."""
    own = logging.getLogger("asyncpg.pool")
    for before, after in ((logging.NOTSET, logging.CRITICAL), (logging.INFO, logging.INFO)):
        monkeypatch.setattr(own, "level", before)
        await (await open_pool(postgres_url)).close()
        assert own.level == after


async def test_a_full_server_keeps_the_connections_that_work(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apc_bus.database._QUIET_SECONDS", 0.2)
    admin = await asyncpg.connect(postgres_url)
    role = f"few_{uuid4().hex[:8]}"
    await admin.execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1")
    async with Switch.open(place_of(postgres_url)) as switch:
        pool = await open_pool(by_way_of(postgres_url, switch.port, user=role), max_size=2)
        try:
            async with pool.acquire() as one:
                with pytest.raises(asyncpg.TooManyConnectionsError):
                    await pool.execute("SELECT 1")
                pid = await one.fetchval("SELECT pg_backend_pid()")
            assert "too many connections" in problems_of(pool)[0]
            assert await pool.fetchval("SELECT pg_backend_pid()") == pid
            assert problems_of(pool) != [], "a connection that works says nothing of those that cannot be opened"
            await admin.execute(f"ALTER ROLE {role} CONNECTION LIMIT 5")
            await until(lambda: problems_of(pool) == [])
        finally:
            pool.terminate()
            await admin.execute(f"DROP ROLE {role}")
            await admin.close()


async def test_a_slow_statement_says_nothing_of_the_server(postgres_url: str) -> None:
    pool = await open_pool(postgres_url, min_size=2, max_size=2, command_timeout=timedelta(milliseconds=200))
    async with pool.acquire() as one, pool.acquire() as two:
        pids = {await one.fetchval("SELECT pg_backend_pid()"), await two.fetchval("SELECT pg_backend_pid()")}
    for _ in range(2):
        with pytest.raises(StatementTooSlow) as caught:
            await pool.execute("SELECT pg_sleep(60)")
        assert is_passing(caught.value) and not is_away(caught.value)
        with pytest.raises(StatementTooSlow):
            async with pool.acquire() as connection, connection.transaction():
                await connection.execute("SELECT pg_sleep(60)")
        assert problems_of(pool) == []
    async with pool.acquire() as one, pool.acquire() as two:
        assert {await one.fetchval("SELECT pg_backend_pid()"), await two.fetchval("SELECT pg_backend_pid()")} == pids
    await pool.close()


async def test_a_server_that_is_frozen_is_left(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apc_bus.database._ANSWER_SECONDS", 0.2)
    async with Switch.open(place_of(postgres_url)) as switch, Proxy.open(by_way_of(postgres_url, switch.port)) as cable:
        pool = await open_pool(cable.url, max_size=1, command_timeout=timedelta(milliseconds=200))
        cable.freeze()
        with pytest.raises(TimeoutError) as caught:
            await pool.execute("SELECT 1")
        assert is_away(caught.value)
        assert "the database is away" in problems_of(pool)[0]
        cable.thaw()
        await until(lambda: problems_of(pool) == [])
        assert await pool.fetchval("SELECT 1") == 1
        pool.terminate()


async def test_a_pool_over_a_server_that_is_frozen_closes_in_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apc_bus.database._CLOSE_SECONDS", 0.2)
    async with Switch.open(place_of(postgres_url)) as switch, Proxy.open(by_way_of(postgres_url, switch.port)) as cable:
        pool = await open_pool(cable.url, max_size=2)
        async with pool.acquire():
            cable.freeze()
            with capture_logs() as logs:
                await pool.close()
        assert [line["event"] for line in logs] == ["database_connections_cut"]


async def test_an_error_of_the_work_leaves_the_pool_alone(postgres_url: str) -> None:
    pool = await open_pool(postgres_url, max_size=1)
    pid = await pool.fetchval("SELECT pg_backend_pid()")
    for wrong in (FileNotFoundError("a file"), asyncpg.QueryCanceledError("slow"), KeyError("x")):
        with pytest.raises(type(wrong)):
            async with pool.acquire():
                raise wrong
    assert problems_of(pool) == []
    assert await pool.fetchval("SELECT pg_backend_pid()") == pid
    await pool.close()

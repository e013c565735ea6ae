"""Over pgbouncer: session mode is supported; transaction mode is refused, by a sentence that names the remedy."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.integration.test_failover import Desk, Done, Job, running, watching
from tests.support.failover.pooler import pooled
from tests.support.waiting import until

from apc_bus.database import connect, is_away, open_pool, problems_of
from apc_bus.errors import PoolerUnsuitable
from apc_cli.doctor import Status, examine
from apc_persister.database.migrate import migrate
from apc_web.pool import open_reader, open_state_reader

pytestmark = pytest.mark.pooler
REMEDY = "set `pool_mode = session` for this database in pgbouncer.ini"


Pooled = Callable[..., Awaitable[str]]


@pytest.fixture
async def over_pooler(postgres_url: str) -> AsyncIterator[Pooled]:
    """Return the URL of a fresh database by way of a pooler in a mode."""
    async with AsyncExitStack() as stack:

        async def start(mode: str, size: int = 60) -> str:
            return await stack.enter_async_context(pooled(postgres_url, mode, size))

        yield start


async def test_everything_runs_in_session_mode(over_pooler: Pooled, tmp_path: Path) -> None:
    """The migration, gate, log writer, every store, the client and what the web server reads."""
    url = await over_pooler("session")
    await migrate(url)
    desk = Desk()
    desk.may_go_on.set()
    async with running(url, tmp_path, desk) as (system, client), watching(url) as feed:
        for number, name in enumerate(("one", "two", "three"), 1):
            session = await client.start(desk.team, Job(name=name))
            assert await session.result(timeout=60) == Done(name=name, made=number)
        await until(lambda: sum(feed.ends.values()) > 0)
        assert problems_of(system.pool) == []


async def test_the_web_server_reads_as_its_roles_in_session_mode(over_pooler: Pooled) -> None:
    url = await over_pooler("session")
    for opened, role in ((open_reader, "apc_reader"), (open_state_reader, "apc_state_reader")):
        pool = await opened(url, timedelta(seconds=5))
        for _ in range(3):
            async with pool.acquire() as connection:
                assert await connection.fetchval("SELECT current_user") == role
                assert await connection.fetchval("SHOW transaction_read_only") == "on"
                assert await connection.fetchval("SHOW statement_timeout") == "5s"
        await pool.close()
    # The pooler lends the same connection to others: none of this is left on it.
    plain = await connect(url)
    assert await plain.fetchval("SELECT current_user") == "postgres"
    await plain.close()


@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_another_mode_is_refused_at_the_start(over_pooler: Pooled, mode: str) -> None:
    url = await over_pooler(mode)
    with pytest.raises(PoolerUnsuitable, match=REMEDY):
        await open_pool(url)


async def test_a_pooler_whose_connections_are_all_lent_is_not_waited_for(
    over_pooler: Pooled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second client, which shows the mode, gets none while the first has the only one."""
    monkeypatch.setattr("apc_bus.database._CONNECT_TIMEOUT_SECONDS", 0.3)
    url = await over_pooler("session", size=1)
    async with asyncio.timeout(10):
        pool = await open_pool(url, max_size=1, wait=timedelta(seconds=2))
        assert await pool.fetchval("SELECT 1") == 1
    pool.terminate()
    url = await over_pooler("transaction", size=1)
    with pytest.raises(PoolerUnsuitable, match=REMEDY):
        await open_pool(url, max_size=1)


async def test_the_doctor_names_pooler_and_remedy(
    over_pooler: Pooled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APC_DATABASE_URL", await over_pooler("transaction"))
    [finding] = [one for one in await examine() if one.status is Status.WRONG]
    assert finding.check == "database"
    assert "connection pooler in transaction or statement mode" in finding.finding
    assert REMEDY in finding.fix


async def test_late_errors_name_pooler_and_remedy(over_pooler: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    """26000 after the pooler has changed the server's connection, 42P05 after another client was there."""
    url = await over_pooler("transaction")
    monkeypatch.setattr("apc_bus.database.check_pooler", _unchecked)
    pool, other = await open_pool(url, max_size=2), await asyncpg.connect(url, statement_cache_size=0)
    assert await pool.fetchval("SELECT 41 + $1::int", 1) == 42
    async with other.transaction():  # it holds the server's connection that the statement was prepared on
        with pytest.raises(PoolerUnsuitable, match=rf"{REMEDY}.*prepared statement .* does not exist"):
            await pool.fetchval("SELECT 41 + $1::int", 1)
    assert "connection pooler in transaction" in problems_of(pool)[0]
    with pytest.raises(PoolerUnsuitable, match=rf"{REMEDY}.*already exists"):
        async with pool.acquire() as connection, connection.transaction():
            for _ in range(2):
                await connection.execute("PREPARE taken AS SELECT 1")
    await other.close()
    pool.terminate()


async def _unchecked(connection: asyncpg.Connection, url: str) -> None:
    await asyncio.sleep(0)


async def test_the_server_behind_the_pooler_is_away(postgres_url: str, over_pooler: Pooled) -> None:
    """pgbouncer answers with 08P01 for everything: it counts as away, and the pool comes back by itself."""
    url = await over_pooler("session")
    pool = await open_pool(url, max_size=1)
    admin = await asyncpg.connect(postgres_url, database="postgres")
    name = urlsplit(postgres_url).path[1:]
    await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false')
    await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
    for _ in range(2):
        with pytest.raises(Exception) as caught:
            await pool.fetchval("SELECT 1")
        assert is_away(caught.value), repr(caught.value)
    assert problems_of(pool) != []
    await admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true')
    await until(lambda: problems_of(pool) == [])
    assert await pool.fetchval("SELECT 1") == 1
    pool.terminate()
    await admin.close()

"""A database of the log that is away: an error that names it and its shards, and never fewer rows."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest
from tests.support.log.split import AWAY, SplitLog, split_log
from tests.support.servers import PostgresServer

from apc_bus.database import open_pool, problems_of
from apc_bus.errors import DatabasePartAway
from apc_bus.settings import ArchiveSettings, PersisterSettings
from apc_cli.connections import open_database
from apc_cli.errors import InputUnusable, ServiceAway
from apc_log.errors import ArchiveUnavailable, DatabasesUnjoinable
from apc_log.heads import READING
from apc_log.placement import Databases, read_databases
from apc_log.queries.packets import list_agent_packets, trace
from apc_log.queries.replay import replay
from apc_log.queries.sessions import list_sessions
from apc_log.thawing import read_archive
from apc_persister.database.joined import join_databases
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard
from apc_web.problems import error_of

pytestmark = [pytest.mark.postgres]
SAID = r"part of the log is away: database east, which has shard 1, does not answer"


@pytest.fixture(scope="module")
def log(fdw_server: PostgresServer) -> Iterator[SplitLog]:
    """A log over two databases."""
    with asyncio.Runner() as runner:
        context = split_log(fdw_server, batches=1)
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def pool(log: SplitLog) -> AsyncIterator[asyncpg.Pool]:
    """The log as a reader reads it."""
    pool = await open_pool(log.home, max_size=2, server_settings={"role": "apc_reader", **READING}, parts={AWAY: [1]})
    yield pool
    await pool.close()


async def test_a_run_across_two_names_the_part_that_is_away(log: SplitLog, pool: asyncpg.Pool) -> None:
    before = await trace(pool, run_id="run-0", limit=1000)
    sessions = {row.packet.session_id for row in before.packets}
    assert sessions == {"session-of-run-0", "second-of-run-0"}
    async with log.taken_away():
        for reading in (
            trace(pool, run_id="run-0", limit=1000),
            list_sessions(pool, run_id="run-0"),
            anext(replay(pool, "run-0")),
        ):
            with pytest.raises(DatabasePartAway, match=SAID) as raised:
                await reading
            assert raised.value.names == (AWAY,) and raised.value.shards == (1,)
        assert problems_of(pool) == [], "the home database is not away"
        problem = error_of(raised.value)
        assert (problem.status, problem.code) == (503, "DATABASE_AWAY") and "database east" in problem.detail
    assert (await trace(pool, run_id="run-0", limit=1000)).packets == before.packets, "it is back"


async def test_a_statement_that_the_database_leaves_is_that_error_too(log: SplitLog, pool: asyncpg.Pool) -> None:
    async with pool.acquire() as connection, connection.transaction():
        cursor = await connection.cursor("SELECT seq FROM apc_log.packet_events WHERE shard = 1")
        assert await cursor.fetchrow()
    with pytest.raises(DatabasePartAway, match=SAID):
        async with pool.acquire() as connection, connection.transaction():
            await connection.fetchval("SELECT count(*) FROM apc_log.sessions")
            async with log.taken_away():
                await connection.fetchval("SELECT count(*) FROM apc_log.sessions")
    assert len(await list_agent_packets(pool, session_id="second-of-run-0", limit=10)) == 10


async def test_what_needs_only_shards_that_are_here_is_read(log: SplitLog, pool: asyncpg.Pool) -> None:
    async with log.taken_away():
        assert await pool.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE shard = 0 AND seq < 100") > 0


async def test_what_an_archive_lacks_is_an_error_and_never_left_out(log: SplitLog, pool: asyncpg.Pool) -> None:
    read_archive(pool, ArchiveSettings(archive_url="file:///nowhere"))
    home = await asyncpg.connect(log.home)
    try:
        await home.execute("UPDATE apc_guard.segments SET state = 'released' WHERE shard = 0 AND first_seq = 1")
        with pytest.raises(ArchiveUnavailable, match=r"log/.*/0/00000000000000000001"):
            await trace(pool, limit=1000)
    finally:
        await home.execute("UPDATE apc_guard.segments SET state = 'open' WHERE shard = 0 AND first_seq = 1")
        await home.close()
    assert (await trace(pool, run_id="run-0", limit=1000)).packets


async def test_a_join_that_cannot_be_made_leaves_the_one_before(log: SplitLog, pool: asyncpg.Pool) -> None:
    connection = await asyncpg.connect(log.home)
    try:
        with pytest.raises(DatabasesUnjoinable, match="shards are in database 'west', and APC_DATABASES does not name"):
            await join_databases(connection, {AWAY: log.away}, {1: "west"})
        async with log.taken_away():
            with pytest.raises(DatabasesUnjoinable, match="database 'east' cannot be read from the home database"):
                await log.join()
        assert await list_agent_packets(pool, session_id="second-of-run-0", limit=1)
        await join_databases(connection, {}, {})
        assert await connection.fetchval("SELECT to_regnamespace('apc_joined')") is None
        assert await connection.fetchval("SELECT count(*) FROM pg_foreign_server") == 0
    finally:
        await connection.close()
        await log.join()


async def test_work_on_one_shard_goes_to_its_own_database(log: SplitLog) -> None:
    """Verification and proofs read no log over another one."""
    databases = Databases(log.home, {AWAY: log.away}, {1: AWAY})
    assert databases.parts == {AWAY: [1]} and databases.url_of(0) == log.home
    key = load_signer(PersisterSettings())
    for shard in (0, 1):
        async with (
            open_database(databases, databases.name_of(shard)) as (pool, url),
            pool.acquire() as connection,
        ):
            assert url == databases.url_of(shard)
            report = await verify_shard(connection, shard, key.public_key(shard))
            assert report.findings == [] and report.entries > 500
    async with log.taken_away():
        with pytest.raises(ServiceAway, match=SAID):
            async with open_database(databases, AWAY):
                pass
    with pytest.raises(InputUnusable, match="shard 7 is in database 'west': name it in APC_DATABASES"):
        async with open_database(Databases(log.home, {}, {7: "west"}), "west"):
            pass
    assert Databases(log.home).parts is None, "a log in one database is read as before"
    assert (await read_databases(log.home, {AWAY: log.away})).away == {}

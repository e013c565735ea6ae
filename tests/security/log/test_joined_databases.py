"""What a reader of several databases could do with the way to the others: write there, read more, see the password."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from tests.support.log.split import SplitLog, as_server_reaches, split_log
from tests.support.servers import PostgresServer

from apc_persister.database.joined import options_of

pytestmark = [pytest.mark.postgres]
PASSWORD = "kept-" + secrets.token_hex(8)


@pytest.fixture(scope="module")
def log(fdw_server: PostgresServer) -> Iterator[SplitLog]:
    """A log over two databases."""
    with asyncio.Runner() as runner:
        context = split_log(fdw_server, batches=1)
        yield runner.run(context.__aenter__())
        runner.run(context.__aexit__(None, None, None))


@pytest.fixture
async def reader(log: SplitLog) -> AsyncIterator[asyncpg.Connection]:
    """A login at home that is a member of apc_reader and of nothing else."""
    admin = await asyncpg.connect(log.home)
    name = f"reader_{secrets.token_hex(4)}"
    await admin.execute(f"CREATE ROLE {name} LOGIN IN ROLE apc_reader")
    connection = await asyncpg.connect(log.home)
    await connection.execute(f"SET SESSION AUTHORIZATION {name}")
    assert await connection.fetchval("SELECT current_user") == name
    yield connection
    await connection.close()
    await admin.execute(f"DROP ROLE {name}")
    await admin.close()


READS = "SELECT count(*) FROM apc_joined.agent_packets WHERE shard = 1"


async def test_a_reader_reads_the_log_of_all_databases(reader: asyncpg.Connection) -> None:
    assert await reader.fetchval(READS) > 0


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM apc_away_east.agent_packets",
        "SELECT * FROM apc_away_east.subject_keys",
        "INSERT INTO apc_joined.shards SELECT * FROM apc_joined.shards",
        "UPDATE apc_joined.sessions SET state = 'CLOSED'",
        "DELETE FROM apc_joined.run_cards",
        "DELETE FROM apc_away_east.run_cards",
        "CREATE VIEW apc_joined.mine AS SELECT 1",
        "CREATE OR REPLACE VIEW apc_joined.sessions AS SELECT * FROM apc_log.sessions",
        "CREATE FOREIGN TABLE pg_temp.mine (agent_id text) SERVER apc_away_east OPTIONS (schema_name 'apc_app')",
        "CREATE USER MAPPING FOR CURRENT_USER SERVER apc_away_east OPTIONS (user 'postgres')",
        "ALTER SERVER apc_away_east OPTIONS (SET host 'elsewhere.example')",
        "ALTER FOREIGN TABLE apc_away_east.sessions OPTIONS (SET schema_name 'apc_app')",
        "IMPORT FOREIGN SCHEMA apc_app FROM SERVER apc_away_east INTO pg_temp",
        "DROP SERVER apc_away_east CASCADE",
        "SET ROLE apc_owner",
    ],
)
async def test_a_reader_goes_no_other_way(reader: asyncpg.Connection, statement: str) -> None:
    with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError)):
        await reader.execute(statement)
    assert await reader.fetchval(READS) > 0


async def test_a_reader_does_not_see_the_password(log: SplitLog, reader: asyncpg.Connection) -> None:
    parts = urlsplit(await _reached(log))
    named = parts._replace(netloc=f"{parts.username or 'postgres'}:{PASSWORD}@{parts.netloc.rpartition('@')[2]}")
    await log.join(named.geturl())
    try:
        assert await reader.fetchval(READS) > 0
        for table in ("pg_user_mappings", "pg_foreign_server", "pg_foreign_table", "pg_stat_activity"):
            rows = await reader.fetch(f"SELECT one::text FROM {table} AS one")
            assert not any(PASSWORD in row[0] for row in rows), table
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await reader.fetch("SELECT * FROM pg_user_mapping")
        for definition in await reader.fetch("SELECT pg_get_viewdef(oid) FROM pg_class WHERE relkind = 'v'"):
            assert PASSWORD not in definition[0]
    finally:
        await log.join()


async def _reached(log: SplitLog) -> str:
    connection = await asyncpg.connect(log.home)
    try:
        return await as_server_reaches(connection, log.away)
    finally:
        await connection.close()


async def test_the_foreign_login_reads_as_a_reader_even_for_the_owner(log: SplitLog) -> None:
    """What stands between is not the rights of readers at home alone: the other database takes no change."""
    owner = await asyncpg.connect(log.home)
    try:
        await owner.execute("SET ROLE apc_owner")
        for statement in (
            "DELETE FROM apc_away_east.run_cards",
            "UPDATE apc_away_east.sessions SET state = 'CLOSED'",
            "INSERT INTO apc_away_east.followed VALUES ('x', 1, 1)",
            "TRUNCATE apc_away_east.run_cards",
        ):
            with pytest.raises(asyncpg.PostgresError, match=r"does not allow|permission denied"):
                await owner.execute(statement)
        await owner.execute("RESET ROLE; ALTER SERVER apc_away_east OPTIONS (SET updatable 'true'); SET ROLE apc_owner")
        with pytest.raises(asyncpg.PostgresError, match=r"permission denied|read-only"):
            await owner.execute("UPDATE apc_away_east.sessions SET state = 'CLOSED'")
        await owner.execute(
            "CREATE FOREIGN TABLE apc_away_east.peek (agent_id text) SERVER apc_away_east "
            "OPTIONS (schema_name 'apc_app', table_name 'effects')"
        )
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute("SELECT * FROM apc_away_east.peek")
    finally:
        await owner.close()
        await log.join()


def test_a_url_cannot_add_options_of_the_server() -> None:
    added = "options=-c%20role%3Dpostgres&updatable=true&use_remote_estimate=false"
    server, mapping = options_of(f"postgresql://u:p'w@h/d?{added}")
    assert server["options"].startswith("-c role=apc_reader") and server["updatable"] == "false"
    assert server["use_remote_estimate"] == "true" and mapping == {"user": "u", "password": "p'w"}

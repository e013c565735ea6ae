"""Migrations: on an empty database, again, at once, with and without rights; and never back."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from io import BytesIO

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from tests.support.log import LogBench, ScriptedGate, lifecycle, packet_entry, session_row
from tests.support.servers import PostgresServer

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_persister.database.guard import read_guard
from apc_persister.database.migrate import (
    SCHEMA_REVISION,
    Additions,
    migrate,
    migrations_folder,
    read_additions,
    schema_version,
    upgrade_to,
)
from apc_persister.errors import SchemaRetired, SchemaUnknown
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.verification.verify import verify_shard

RULING = """
INSERT INTO apc_log.transfer_rulings (shard, seq, judged_at, session_id, packet_id, run_id, task_id, protocol_id,
    parent_protocol_ids, refusal_code, is_accepted, cross_use_case, transfer_mode)
VALUES (0, $1, clock_timestamp(), 's', gen_random_uuid(), 'run', $2, 'p', '{}', $3::text, $3 IS NULL, false,
    'COMMONS_SEED')
"""


@pytest.fixture
async def empty_url(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """URL of a database without a schema."""
    name = f"apc_test_{secrets.token_hex(6)}"
    await postgres_server.drop(name)
    await postgres_server._execute(f"CREATE DATABASE {name} TEMPLATE template0")
    yield postgres_server.url_of(name)
    await postgres_server.drop(name)


def scripts() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.set_main_option("path_separator", "os")
    return config


async def test_an_empty_database_has_no_version(empty_url: str) -> None:
    assert await schema_version(empty_url) is None


async def test_upgrade_twice_is_a_no_op(empty_url: str) -> None:
    await migrate(empty_url)
    before = await _schema(empty_url)
    await migrate(empty_url)
    assert await schema_version(empty_url) == SCHEMA_REVISION
    assert await _schema(empty_url) == before


async def test_migrations_at_once(empty_url: str) -> None:
    await asyncio.gather(*(migrate(empty_url) for _ in range(3)))
    assert await schema_version(empty_url) == SCHEMA_REVISION


async def test_a_user_without_create_role_gets_the_log_all_the_same(empty_url: str) -> None:
    """As on a managed server: the roles cannot be made, the triggers stand."""
    admin = await asyncpg.connect(empty_url)
    role = f"apc_test_{secrets.token_hex(6)}"
    await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'p'")
    try:
        database = await admin.fetchval("SELECT current_database()")
        await admin.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
        await migrate(re.sub("//.*@", f"//{role}:p@", empty_url))
        owner = await admin.fetchval(
            "SELECT relowner::regrole::text FROM pg_class WHERE oid = 'apc_log.agent_packets'::regclass"
        )
        assert owner == role
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await admin.execute("TRUNCATE apc_log.agent_packets")
    finally:
        await admin.execute(f"DROP OWNED BY {role} CASCADE")
        await admin.execute(f"DROP ROLE {role}")
        await admin.close()


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    await _set_revision(postgres_url, "9999")
    with pytest.raises(SchemaUnknown, match="upgrade apc-bus"):
        await migrate(postgres_url)


async def test_a_schema_from_before_the_first_release(postgres_url: str, empty_url: str) -> None:
    """The last of those revisions has the schema of 0108 but for two indexes; no migration is left of the others."""
    await asyncio.to_thread(upgrade_to, "0108", empty_url)
    await _maintain(empty_url, "DROP INDEX apc_log.agent_packets_refused, apc_log.packet_conflicts_session")
    await _set_revision(empty_url, "0025")

    await migrate(empty_url)

    assert await schema_version(empty_url) == SCHEMA_REVISION
    assert await _indexes(empty_url) == await _indexes(postgres_url)
    await _set_revision(empty_url, "0024")
    with pytest.raises(SchemaRetired, match="0024, from before the first release"):
        await migrate(empty_url)
    assert await schema_version(empty_url) == "0024"


async def test_a_schema_of_the_first_release(empty_url: str) -> None:
    """Its revision 0109 made the two indexes; today's makes the schedules, which such a database has not."""
    await asyncio.to_thread(upgrade_to, "0109", empty_url)
    await _maintain(empty_url, "DROP TABLE apc_app.schedules")

    await migrate(empty_url)

    connection = await asyncpg.connect(empty_url)
    assert await connection.fetchval("SELECT to_regclass('apc_app.schedules')") is not None
    for role, table in (("apc_agent", "schedules"), ("apc_state_reader", "agent_tasks")):
        may = "SELECT has_table_privilege($1, $2, 'SELECT')"
        assert await connection.fetchval(may, role, f"apc_app.{table}")
    await connection.close()


async def test_where_protocols_were_used_follows_from_the_rulings(empty_url: str) -> None:
    await asyncio.to_thread(upgrade_to, "0110", empty_url)
    connection = await asyncpg.connect(empty_url)
    await connection.executemany(RULING, [(1, "task-1", None), (2, "task-1", None), (3, "task-2", "THROTTLE_SCORE")])

    await migrate(empty_url)

    tasks = await connection.fetch("SELECT * FROM apc_log.protocol_tasks ORDER BY task_id")
    assert [*map(tuple, tasks)] == [("p", "run", "task-1", "", 0), ("p", "run", "task-2", "THROTTLE_SCORE", 0)]
    runs = await connection.fetch("SELECT refusal_code, last_judged_at FROM apc_log.protocol_runs ORDER BY 1")
    newest = await connection.fetch(
        "SELECT coalesce(refusal_code, ''), max(judged_at) FROM apc_log.transfer_rulings GROUP BY 1 ORDER BY 1"
    )
    assert [*map(tuple, runs)] == [*map(tuple, newest)]
    await connection.close()


async def test_tasks_of_an_older_release_are_kept(empty_url: str) -> None:
    await asyncio.to_thread(upgrade_to, "0111", empty_url)
    connection = await asyncpg.connect(empty_url)
    task = await connection.fetchval(
        "INSERT INTO apc_app.agent_tasks (task_id, agent_id, session_id, spec)"
        " VALUES (gen_random_uuid(), 'a-1', 's-1', '{}') RETURNING task_id"
    )
    add_event = "INSERT INTO apc_app.agent_task_events (task_id, number, packet_id, document) VALUES ($1, 1, $1, '{}')"
    await connection.execute(add_event, task)
    await connection.execute("INSERT INTO apc_app.agent_task_effects (task_id, name) VALUES ($1, 'pay')", task)

    await migrate(empty_url)

    for table in ("agent_task_events", "agent_task_effects"):
        assert await connection.fetchval(f"SELECT agent_id FROM apc_app.{table}") == "a-1"
    await connection.execute("UPDATE apc_app.agent_tasks SET is_removed = true")
    for table in ("agent_tasks", "agent_task_events", "agent_task_effects"):
        assert await connection.fetchval(f"SELECT count(*) FROM apc_app.{table}") == 0
    await connection.close()


_TABLES_OF_THE_LOG = """
SELECT relname FROM pg_class
WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
  AND relname NOT IN ('unopened_sessions', 'run_blocks', 'log_events') ORDER BY relname
"""
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""


async def _copy_log(source: asyncpg.Connection, target: asyncpg.Connection) -> None:
    """Copy the rows of every table of the log into a database of an older schema."""
    for (table,) in await source.fetch(_TABLES_OF_THE_LOG):
        columns = await target.fetchval(_COLUMNS, f"apc_log.{table}")
        held = BytesIO()
        await source.copy_from_query(f"SELECT {columns} FROM apc_log.{table}", output=held)
        held.seek(0)
        names = [name.strip('"') for name in columns.split(", ")]
        await target.copy_to_table(table, schema_name="apc_log", source=held, columns=names)


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_filled_log_is_divided(pool: asyncpg.Pool, postgres_url: str, empty_url: str, shards: int) -> None:
    """The log of one shard stays where it is, those of several are copied: every entry is there and proven."""
    broker = InMemoryBroker(build_topology(shards))
    bench = LogBench(ScriptedGate(broker.connect("orchestrator")), broker.connect("persister"), pool)
    bench.settings = PersisterSettings(shards=shards)
    for shard in range(shards):
        gate = ScriptedGate(bench.gate.bus, shard)
        await gate.open()
        for number in range(40):
            packet = packet_entry(session_id=f"s-{shard}-{number}")
            early = packet_entry(session_id=f"early-{shard}-{number}", refusal_code="NOT_FOUND")
            await gate.log([early, packet, *lifecycle(packet)], [session_row(f"s-{shard}-{number}")])
    await bench.write()
    await asyncio.to_thread(upgrade_to, "0121", empty_url)
    source, target = await asyncpg.connect(postgres_url), await asyncpg.connect(empty_url)
    await _copy_log(source, target)
    counted = "SELECT count(*), sum(seq), count(DISTINCT shard) FROM apc_log.{}"
    tables = ("agent_packets", "packet_events", "packet_ids", "packets", "packet_state")
    before = [await target.fetchrow(counted.format(table)) for table in tables[:3]]

    await migrate(empty_url)

    assert [await target.fetchrow(counted.format(table)) for table in tables[:3]] == before
    assert await target.fetchval("SELECT count(*) FROM apc_log.packets") == 80 * shards
    assert await target.fetchval("SELECT count(*) FROM apc_log.unopened_sessions WHERE first_seq > 0") == 40 * shards
    assert [*map(tuple, await target.fetch("SELECT shard, first_seq, last_seq, state FROM apc_log.segments"))] == [
        (shard, 1, 65536, "open") for shard in range(shards)
    ]
    assert (await read_guard(target)).is_full
    assert (await read_additions(target)) == Additions((), ())
    key = load_signer(PersisterSettings())
    for shard in range(shards):
        report = await verify_shard(target, shard, key.public_key(shard))
        assert list(report.findings) == []
        assert report.entries >= 200
    await source.close()
    await target.close()


async def test_a_view_of_somebody_else_is_named(empty_url: str) -> None:
    await asyncio.to_thread(upgrade_to, "0121", empty_url)
    connection = await asyncpg.connect(empty_url)
    await connection.execute("CREATE VIEW public.mine AS SELECT count(*) FROM apc_log.packets")
    with pytest.raises(asyncpg.DependentObjectsStillExistError, match="mine reads a table of the log"):
        await migrate(empty_url)
    await connection.execute("DROP VIEW public.mine")
    await connection.close()
    await migrate(empty_url)


def test_the_revision_is_the_newest_script() -> None:
    assert ScriptDirectory.from_config(scripts()).get_current_head() == SCHEMA_REVISION


def test_there_is_no_way_down() -> None:
    for revision in ScriptDirectory.from_config(scripts()).walk_revisions():
        with pytest.raises(RuntimeError, match="append-only"):
            revision.module.downgrade()


def test_every_revision_has_one_script_of_its_name() -> None:
    folder = migrations_folder()
    names = {path.stem.removeprefix("v") for path in (folder / "versions").glob("v*.py")}
    assert {path.stem for path in (folder / "sql").glob("*.sql")} == names | {"logins"}


def test_alembic_without_a_connection_says_so() -> None:
    with pytest.raises(KeyError, match="connection"):
        command.upgrade(scripts(), "head")


async def _set_revision(url: str, revision: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE apc_guard.alembic_version SET version_num = $1", revision)
    await connection.close()


async def _indexes(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    rows = await connection.fetch(
        "SELECT substring(indexdef FROM ' ON .*') FROM pg_indexes WHERE schemaname = 'apc_log'"
    )
    await connection.close()
    return {row[0] for row in rows}


async def _maintain(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("SELECT apc_guard.maintain('a test makes an older schema')")
        await connection.execute(statement)
    await connection.close()


async def _schema(url: str) -> list[tuple[str, str]]:
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(
            "SELECT oid::regclass::text, relfilenode::text FROM pg_class "
            "WHERE relnamespace IN ('apc_log'::regnamespace, 'apc_app'::regnamespace) ORDER BY 1"
        )
        return [(row[0], row[1]) for row in rows]
    finally:
        await connection.close()

"""Migrations: on an empty database, again, at once, with and without rights; and never back."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from tests.support.servers import PostgresServer

from apc_persister.database.migrate import SCHEMA_REVISION, migrate, migrations_folder, schema_version
from apc_persister.errors import SchemaRetired, SchemaUnknown

SINCE_0108 = (
    "DROP INDEX apc_log.agent_packets_refused, apc_log.packet_conflicts_session",
    "DROP TABLE apc_app.schedules",
)
SINCE_0110 = (
    "DROP FUNCTION apc_log.sum_runs, apc_log.sum_run",
    "DROP VIEW apc_log.unsummed_runs, apc_log.uses_of_runs, apc_log.counted_verdicts",
    "DROP TABLE apc_log.protocol_tasks, apc_log.protocol_runs, apc_log.run_changes",
    "DROP TABLE apc_log.protocol_sums, apc_log.summed_uses",
    "DROP INDEX apc_log.transfer_rulings_protocol, apc_log.transfer_rulings_run",
    "CREATE INDEX transfer_rulings_run ON apc_log.transfer_rulings (run_id, shard, seq)",
    "CREATE INDEX transfer_rulings_uses ON apc_log.transfer_rulings (protocol_id, run_id, task_id)",
)
_OF_AGENTS = "agent_tasks agent_effects agent_task_events agent_task_effects schedules schedule_turns agent_state_store"
SINCE_0117 = (
    "DROP FUNCTION apc_log.place_shard",
    "DROP TABLE apc_log.shard_places",
    # As if this maintenance had made the table: columns of one that is guarded do not go.
    "UPDATE apc_guard.log_tables SET new_in = pg_current_xact_id() WHERE relname = 'shard_epochs'",
    "ALTER TABLE apc_log.shard_epochs DROP COLUMN orchestrator",
    "DROP FUNCTION apc_log.packet_states(text, uuid, text[], integer, bigint, bigint)",
    "DROP FUNCTION apc_log.bound_sessions, apc_log.first_named",
    "ALTER TABLE apc_log.sessions DROP COLUMN first_seq, DROP COLUMN last_seq",
    "ALTER TABLE apc_log.shards DROP COLUMN bounded_seq",
    "DROP INDEX apc_log.sessions_opener",
    "DROP TABLE apc_app.a2a_push",
    "DROP INDEX apc_log.registry_events_host",
    "DROP TABLE apc_log.agent_presence",
)
SINCE_0116 = (
    *SINCE_0117,
    "DROP INDEX apc_log.registry_events_agent",
    *(
        f"ALTER POLICY agents ON apc_app.{table} USING ((SELECT apc_app.writing_agent()) IN ('', {column}))"
        for table, column in (*((one, "agent_id") for one in _OF_AGENTS.split()), ("conversation_history", "made_by"))
    ),
    "DROP FUNCTION apc_app.runs_here",
)
SINCE_0111 = (
    *SINCE_0116,
    "DROP FUNCTION apc_log.count_days",
    "DROP TABLE apc_log.packet_minutes, apc_log.agent_days, apc_log.agent_latencies",
    "DROP POLICY settlers ON apc_app.agent_effects",
    "DROP INDEX apc_log.log_events_acknowledged",
    "DROP FUNCTION apc_guard.record_acknowledgement, apc_log.note_troubles, apc_log.note_answers",
    "DROP VIEW apc_log.trouble_rows, apc_log.answer_rows",
    "DROP TABLE apc_log.troubles, apc_log.trouble_minutes, apc_log.answers",
    "DROP FUNCTION apc_log.exception_in",
    "DROP FUNCTION apc_log.write_cards, apc_log.write_card, apc_log.index_packets",
    "DROP VIEW apc_log.packet_words, apc_log.packet_names, apc_log.run_figures",
    "CREATE OR REPLACE VIEW apc_log.packets AS SELECT shard, seq, session_id, packet_id, packet_type, verdict,"
    " judged_at, convert_from(body_stored, 'UTF8')::jsonb AS packet FROM apc_log.agent_packets",
    "DROP TABLE apc_log.followed, apc_log.packet_search, apc_log.run_cards",
    "DROP FUNCTION apc_log.key_in, apc_log.document_in, apc_log.said_in, apc_log.words_of, apc_log.end_of",
    "DROP FUNCTION apc_log.divided, apc_log.name_in, apc_log.tags_in",
    "DROP INDEX apc_log.packet_lineage_measured, apc_log.packet_lineage_measured_parents",
    "DROP TABLE apc_app.schedule_turns",
    "DROP FUNCTION apc_app.remove_marked CASCADE",
    *(
        f"ALTER TABLE apc_app.{table} DROP COLUMN is_removed"
        for table in ("agent_state_store", "conversation_history", "agent_tasks", "agent_effects", "schedules")
    ),
    "DROP POLICY agents ON apc_app.agent_task_events",
    "DROP POLICY agents ON apc_app.agent_task_effects",
    "ALTER TABLE apc_app.agent_tasks DROP CONSTRAINT agent_tasks_pkey CASCADE, ADD PRIMARY KEY (task_id)",
    "ALTER TABLE apc_app.agent_task_events DROP COLUMN agent_id, ADD PRIMARY KEY (task_id, number),"
    " ADD FOREIGN KEY (task_id) REFERENCES apc_app.agent_tasks ON DELETE CASCADE",
    "ALTER TABLE apc_app.agent_task_effects DROP COLUMN agent_id, ADD PRIMARY KEY (task_id, name),"
    " ADD FOREIGN KEY (task_id) REFERENCES apc_app.agent_tasks ON DELETE CASCADE",
    "CREATE POLICY agents ON apc_app.agent_task_events USING (true)",
    "CREATE POLICY agents ON apc_app.agent_task_effects USING (true)",
    "GRANT UPDATE, DELETE ON ALL TABLES IN SCHEMA apc_app TO apc_agent",
)
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


async def test_a_schema_from_before_the_first_release(postgres_url: str) -> None:
    """The last of those revisions has the schema of 0108 but for two indexes; no migration is left of the others."""
    indexes = await _indexes(postgres_url)
    await _drop(postgres_url, *SINCE_0111, *SINCE_0108, *SINCE_0110)
    assert await _indexes(postgres_url) != indexes

    await _set_revision(postgres_url, "0025")
    await migrate(postgres_url)
    assert await schema_version(postgres_url) == SCHEMA_REVISION
    assert await _indexes(postgres_url) == indexes

    await _set_revision(postgres_url, "0024")
    with pytest.raises(SchemaRetired, match="0024, from before the first release"):
        await migrate(postgres_url)
    assert await schema_version(postgres_url) == "0024"


async def test_a_schema_of_the_first_release(postgres_url: str) -> None:
    """Its revision 0109 made the two indexes; today's makes the schedules, which such a database has not."""
    await _drop(postgres_url, *SINCE_0111, "DROP TABLE apc_app.schedules", *SINCE_0110)
    await _set_revision(postgres_url, "0109")

    await migrate(postgres_url)

    connection = await asyncpg.connect(postgres_url)
    assert await connection.fetchval("SELECT to_regclass('apc_app.schedules')") is not None
    for role, table in (("apc_agent", "schedules"), ("apc_state_reader", "agent_tasks")):
        may = "SELECT has_table_privilege($1, $2, 'SELECT')"
        assert await connection.fetchval(may, role, f"apc_app.{table}")
    await connection.close()


async def test_where_protocols_were_used_follows_from_the_rulings(postgres_url: str) -> None:
    await _drop(postgres_url, *SINCE_0111, *SINCE_0110)
    connection = await asyncpg.connect(postgres_url)
    await connection.executemany(RULING, [(1, "task-1", None), (2, "task-1", None), (3, "task-2", "THROTTLE_SCORE")])
    await _set_revision(postgres_url, "0110")

    await migrate(postgres_url)

    tasks = await connection.fetch("SELECT * FROM apc_log.protocol_tasks ORDER BY task_id")
    assert [*map(tuple, tasks)] == [("p", "run", "task-1", "", 0), ("p", "run", "task-2", "THROTTLE_SCORE", 0)]
    runs = await connection.fetch("SELECT refusal_code, last_judged_at FROM apc_log.protocol_runs ORDER BY 1")
    newest = await connection.fetch(
        "SELECT coalesce(refusal_code, ''), max(judged_at) FROM apc_log.transfer_rulings GROUP BY 1 ORDER BY 1"
    )
    assert [*map(tuple, runs)] == [*map(tuple, newest)]
    await connection.close()


async def test_tasks_of_an_older_release_are_kept(postgres_url: str) -> None:
    await _drop(postgres_url, *SINCE_0111)
    connection = await asyncpg.connect(postgres_url)
    task = await connection.fetchval(
        "INSERT INTO apc_app.agent_tasks (task_id, agent_id, session_id, spec)"
        " VALUES (gen_random_uuid(), 'a-1', 's-1', '{}') RETURNING task_id"
    )
    add_event = "INSERT INTO apc_app.agent_task_events (task_id, number, packet_id, document) VALUES ($1, 1, $1, '{}')"
    await connection.execute(add_event, task)
    await connection.execute("INSERT INTO apc_app.agent_task_effects (task_id, name) VALUES ($1, 'pay')", task)
    await _set_revision(postgres_url, "0111")

    await migrate(postgres_url)

    for table in ("agent_task_events", "agent_task_effects"):
        assert await connection.fetchval(f"SELECT agent_id FROM apc_app.{table}") == "a-1"
    await connection.execute("UPDATE apc_app.agent_tasks SET is_removed = true")
    for table in ("agent_tasks", "agent_task_events", "agent_task_effects"):
        assert await connection.fetchval(f"SELECT count(*) FROM apc_app.{table}") == 0
    await connection.close()


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
    rows = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = 'apc_log'")
    await connection.close()
    return {row[0] for row in rows}


async def _drop(url: str, *statements: str) -> None:
    """Undo in recorded maintenance what newer revisions made."""
    connection = await asyncpg.connect(url)
    async with connection.transaction():
        await connection.execute("SELECT apc_guard.maintain('a test goes back to an older schema')")
        for statement in statements:
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

"""What the freeze lets through: our own migrations, recorded in the log, also beside a writer at work."""

import asyncio
import importlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from tests.persister.guard.conftest import GuardedLog
from tests.support.log import LogBench, ScriptedGate, lifecycle, packet_entry, until

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_persister.database.migrate import SCHEMA_REVISION, migrate, migrations_folder
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.service import Persister
from apc_persister.verification.verify import verify_shard

PROJECTIONS = {
    *("apc_log.shards", "apc_log.sessions"),
    *("apc_log.log_edges", "apc_log.checkpoint_exports"),
    *("apc_log.task_tallies", "apc_log.transfer_rulings", "apc_log.protocol_tallies"),
    *("apc_log.protocol_tasks", "apc_log.protocol_runs", "apc_log.run_changes"),
    *("apc_log.protocol_sums", "apc_log.summed_uses"),
    *("apc_log.followed", "apc_log.packet_search", "apc_log.packet_search_0_1", "apc_log.run_cards"),
    *("apc_log.troubles", "apc_log.trouble_minutes", "apc_log.answers"),
    *("apc_log.packet_minutes", "apc_log.agent_days", "apc_log.agent_latencies"),
    *("apc_log.agent_presence", "apc_log.shard_places", "apc_log.unopened_sessions", "apc_log.run_blocks"),
}
"""Tables of apc_log whose rows may change. A new one belongs here, and its migration calls apc_guard.exempt."""

LATER = """
from alembic import op
revision, down_revision = "9999", {head!r}
def upgrade():
    op.execute("CREATE TABLE apc_log.later_entries (shard integer, seq bigint, PRIMARY KEY (shard, seq))")
    op.execute("CREATE TABLE apc_log.later_projection (name text PRIMARY KEY)")
    op.execute("SELECT apc_guard.exempt('apc_log.later_projection')")
    op.execute("ALTER TABLE apc_log.agent_packets ADD COLUMN later text")
    op.execute("CREATE INDEX later ON apc_log.agent_packets (later)")
    op.execute("CREATE OR REPLACE VIEW apc_log.later_view AS SELECT 1 AS one")
"""


@pytest.fixture
def later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release with one migration more than this one."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations_folder(), folder)
    (folder / "versions" / "v9999_later.py").write_text(LATER.format(head=SCHEMA_REVISION))
    migration = importlib.import_module("apc_persister.database.migrate")
    monkeypatch.setattr(migration, "migrations_folder", lambda: folder)
    monkeypatch.setattr(migration, "SCHEMA_REVISION", "9999")


@pytest.fixture
async def connection(fresh_log: GuardedLog) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to a log of the test's own."""
    opened = await asyncpg.connect(fresh_log.url)
    yield opened
    await opened.close()


async def next_numbers(connection: asyncpg.Connection) -> dict[int, int]:
    """Of each shard, the number that its next entry takes."""
    return {row[0]: row[1] for row in await connection.fetch("SELECT shard, next_seq FROM apc_log.shards")}


async def wait_for_messages(persister: Persister, wanted: int) -> None:
    """Until the writer of shard 0 has committed so many messages."""
    await until(lambda: persister.writers[0].counts.messages >= wanted)


async def test_every_table_of_the_log_is_guarded(superuser: asyncpg.Connection) -> None:
    assert await superuser.fetch("SELECT * FROM apc_guard.faults()") == []
    rows = await superuser.fetch(
        "SELECT oid::regclass::text AS name, is_append_only FROM pg_class LEFT JOIN apc_guard.log_tables ON name = oid "
        "WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'p')"
    )
    assert {row["name"] for row in rows if row["is_append_only"] is not True} == PROJECTIONS
    for row in rows:
        if row["is_append_only"]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
                await superuser.execute(f"DELETE FROM {row['name']}")


async def test_a_later_migration_by_a_member_of_the_owner(
    fresh_log: GuardedLog, connection: asyncpg.Connection, later_release: None
) -> None:
    await connection.execute(f"ALTER ROLE {fresh_log.migrator} INHERIT")
    # Since PostgreSQL 16 inheritance is a property of the membership.
    await connection.execute(f"REVOKE apc_owner FROM {fresh_log.migrator}; GRANT apc_owner TO {fresh_log.migrator}")

    await migrate(fresh_log.migrator_url)

    assert await connection.fetch("SELECT * FROM apc_guard.faults()") == []
    owners = await connection.fetch(
        "SELECT DISTINCT relowner::regrole::text FROM pg_class "
        "WHERE relnamespace = 'apc_log'::regnamespace AND relkind IN ('r', 'v')"
    )
    assert [row[0] for row in owners] == ["apc_owner"]
    await connection.execute("SET SESSION AUTHORIZATION apc_writer")
    await connection.execute("INSERT INTO apc_log.later_entries VALUES (0, 1)")
    await connection.execute("INSERT INTO apc_log.later_projection VALUES ('x')")
    await connection.execute("UPDATE apc_log.later_projection SET name = 'y'")
    await connection.execute("RESET SESSION AUTHORIZATION")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
        await connection.execute("DELETE FROM apc_log.later_entries")
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="stays append-only"):
        await connection.execute(
            "SELECT apc_guard.maintain('too late'); SELECT apc_guard.exempt('apc_log.later_entries')"
        )


async def test_a_maintenance_is_an_entry_of_every_shard(connection: asyncpg.Connection) -> None:
    heads = await next_numbers(connection)
    async with connection.transaction():
        await connection.execute("SELECT apc_guard.maintain('an index')")
        await connection.execute("SELECT apc_guard.maintain('once more')")
        await connection.execute("CREATE INDEX ON apc_log.agent_packets (user_id)")

    rows = await connection.fetch(
        "SELECT shard, seq, kind, actor, detail->>'reason' FROM apc_log.log_events ORDER BY 1"
    )
    assert [tuple(row) for row in rows] == [
        (shard, next_seq, "maintenance", "postgres", "an index") for shard, next_seq in sorted(heads.items())
    ]
    assert await next_numbers(connection) == {shard: next_seq + 1 for shard, next_seq in heads.items()}
    assert await connection.fetch("SELECT * FROM apc_guard.maintenance") == []
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="frozen"):
        await connection.execute("CREATE INDEX ON apc_log.agent_packets (user_id)")


async def test_the_owners_code_never_runs_with_the_guards_rights(connection: asyncpg.Connection) -> None:
    """A constraint is evaluated by the one who inserts: the guard must not do that as the superuser it belongs to."""
    await connection.execute("SET SESSION AUTHORIZATION apc_owner")
    await connection.execute(
        "SELECT apc_guard.maintain('a constraint');"
        "CREATE FUNCTION elsewhere.is_harmless() RETURNS boolean LANGUAGE sql AS "
        "$$ SELECT NOT rolsuper FROM pg_roles WHERE rolname = current_user $$;"
        "ALTER TABLE apc_log.log_events ADD CHECK (elsewhere.is_harmless()) NOT VALID;"
        "ALTER TABLE apc_log.shards ADD CHECK (elsewhere.is_harmless()) NOT VALID"
    )
    await connection.execute("RESET SESSION AUTHORIZATION")
    await connection.execute("SELECT apc_guard.maintain('by a superuser')")
    assert await connection.fetchval("SELECT count(*) FROM apc_log.log_events WHERE shard = 0") == 2


async def test_a_maintenance_that_is_rolled_back_leaves_nothing(connection: asyncpg.Connection) -> None:
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("SELECT apc_guard.maintain('nothing')")
    await connection.execute("CREATE TABLE apc_log.nothing (a integer)")
    await transaction.rollback()

    assert await connection.fetch("SELECT * FROM apc_log.log_events") == []
    assert await connection.fetch("SELECT * FROM apc_guard.faults()") == []
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="frozen"):
        await connection.execute("CREATE TABLE apc_log.nothing (a integer)")


async def test_ddl_beside_the_log_is_nobodys_business(connection: asyncpg.Connection) -> None:
    await connection.execute(
        "CREATE TABLE public.own (a integer); ALTER TABLE public.own ADD b text; CREATE TEMP TABLE t (a integer);"
        "CREATE VIEW public.seen AS SELECT packet_id FROM apc_log.agent_packets;"
        "GRANT SELECT ON public.own TO apc_agent;"
        "ALTER TABLE apc_app.agent_state_store ADD c text; DROP TABLE public.own; DROP TABLE t; DROP VIEW public.seen"
    )


async def test_a_migration_beside_a_writer_at_work(
    fresh_log: GuardedLog, memory_broker: InMemoryBroker, later_release: None
) -> None:
    pool = await open_pool(fresh_log.url, max_size=4)
    try:
        await pool.execute("UPDATE apc_log.shards SET epoch = 0, batch_no = 0 WHERE shard = 0")
        gate = ScriptedGate(memory_broker.connect("orchestrator"))
        bench = LogBench(gate, memory_broker.connect("persister"), pool)
        first = await pool.fetchval("SELECT next_seq FROM apc_log.shards WHERE shard = 0")
        await gate.open()
        async with bench.writing() as persister:
            await until(lambda: persister.is_ready)
            migrating = asyncio.create_task(migrate(fresh_log.url))
            batches = 0
            while not migrating.done() or batches < 20:
                packet = packet_entry()
                await gate.log([packet, *lifecycle(packet)])
                batches += 1
                await wait_for_messages(persister, batches - 5)
            await migrating
            await wait_for_messages(persister, batches + 1)
        assert await pool.fetchval("SELECT version_num FROM apc_guard.alembic_version") == "9999"
        numbers = await bench.numbers()
        assert numbers == list(range(1, first + 4 * batches + 1)), "four entries a batch, and the maintenance"
        rows = await pool.fetch("SELECT kind FROM apc_log.log_events WHERE shard = 0")
        assert [row[0] for row in rows] == ["maintenance"]
        assert persister.writers[0].counts.unstored == 0
        async with pool.acquire() as connection:
            report = await verify_shard(connection, 0, load_signer(bench.settings).public_key(0))
        assert (report.findings, report.entries) == ([], len(numbers)), "the maintenance is a leaf like any other"
    finally:
        await pool.close()

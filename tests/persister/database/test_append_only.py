"""What each role may do to the log, the owner and the superuser included."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log import LogBench, lifecycle, packet_entry, session_row

LOG_TABLES = (
    "agent_packets",
    "packet_events",
    "packet_lineage",
    "coordination_events",
    "packet_conflicts",
    "registry_events",
    "log_events",
    "log_checkpoints",
    "log_tiles",
    "packet_ids",
    "shard_epochs",
)
CHANGES = (
    "UPDATE apc_log.{0} SET shard = shard",
    "DELETE FROM apc_log.{0}",
    "TRUNCATE apc_log.{0}",
    "TRUNCATE apc_log.{0} CASCADE",
)


@pytest.fixture
async def connection(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to a fresh database."""
    opened = await asyncpg.connect(postgres_url)
    yield opened
    await opened.close()


@pytest.mark.parametrize("role", ["superuser", "replica", "apc_owner"])
@pytest.mark.parametrize("table", LOG_TABLES)
async def test_no_row_changes(connection: asyncpg.Connection, table: str, role: str) -> None:
    if role == "replica":
        await connection.execute("SET session_replication_role = replica")
    elif role != "superuser":
        await connection.execute(f"SET SESSION AUTHORIZATION {role}")
    for change in CHANGES:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=f"apc_log.{table} is append-only"):
            await connection.execute(change.format(table))


async def test_no_row_changes_by_a_detour(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry()
    await bench.gate.log([packet, *lifecycle(packet)], [session_row()])
    await bench.write()
    for change in (
        "UPDATE apc_log.agent_packets SET user_id = 'x'",
        "INSERT INTO apc_log.packet_ids_0_1 SELECT * FROM apc_log.packet_ids "
        "ON CONFLICT (session_id, packet_id) DO UPDATE SET seq = 9",
        "MERGE INTO apc_log.packet_events e USING (SELECT 1 AS one) s ON true WHEN MATCHED THEN DELETE",
        "WITH gone AS (DELETE FROM apc_log.agent_packets RETURNING 1) SELECT count(*) FROM gone",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await bench.pool.execute(change)
    assert await bench.count("agent_packets") == 1


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("apc_writer", "UPDATE apc_log.agent_packets SET user_id = 'x'"),
        ("apc_writer", "DELETE FROM apc_log.packet_events"),
        ("apc_writer", "TRUNCATE apc_log.packet_events"),
        ("apc_writer", "DROP TABLE apc_log.packet_events"),
        ("apc_writer", "ALTER TABLE apc_log.packet_events DISABLE TRIGGER ALL"),
        ("apc_writer", "SELECT * FROM apc_app.agent_state_store"),
        ("apc_writer", "DELETE FROM apc_log.sessions"),
        ("apc_reader", "INSERT INTO apc_log.shards VALUES (7, 0, NULL, 0, 1)"),
        ("apc_reader", "UPDATE apc_log.sessions SET state = 'x'"),
        ("apc_agent", "SELECT * FROM apc_log.agent_packets"),
        ("apc_agent", "INSERT INTO apc_log.shards VALUES (7, 0, NULL, 0, 1)"),
        (
            "apc_owner",
            "CREATE OR REPLACE FUNCTION apc_guard.refuse_change() RETURNS trigger "
            "LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        ),
        ("apc_owner", "SET session_replication_role = replica"),
    ],
)
async def test_a_role_may_not(connection: asyncpg.Connection, role: str, statement: str) -> None:
    await connection.execute(f"SET SESSION AUTHORIZATION {role}")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute(statement)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        ("apc_writer", "INSERT INTO apc_log.shards VALUES (7, 0, NULL, 0, 1)"),
        ("apc_writer", "SELECT * FROM apc_log.packet_state"),
        ("apc_reader", "SELECT * FROM apc_log.packet_transitions"),
        ("apc_reader", "SELECT version_num FROM apc_guard.alembic_version"),
        ("apc_agent", "UPDATE apc_app.agent_state_store SET is_removed = true"),
    ],
)
async def test_a_role_may(connection: asyncpg.Connection, role: str, statement: str) -> None:
    await connection.execute(f"SET SESSION AUTHORIZATION {role}")
    await connection.execute(statement)


async def test_bytes_and_their_hash_agree(connection: asyncpg.Connection) -> None:
    constraints = await connection.fetch(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'apc_log.agent_packets'::regclass"
    )
    assert "CHECK ((stored_hash = sha256(body_stored)))" in {row[0] for row in constraints}

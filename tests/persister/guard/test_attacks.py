"""Attacks on a log, by everybody who can reach the database (docs/explanation/log-security.md): each refused, by
name.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import chain

import asyncpg
import pytest
from tests.persister.guard.conftest import GuardedLog

UPDATE = "UPDATE apc_log.agent_packets SET user_id = 'x'"
DELETE = "DELETE FROM apc_log.agent_packets"
TRUNCATE = "TRUNCATE apc_log.agent_packets CASCADE"
DISABLE = "ALTER TABLE apc_log.agent_packets DISABLE TRIGGER ALL"
DROP = "DROP TABLE apc_log.agent_packets CASCADE"
REPLICA = "SET session_replication_role = replica"
NO_OP_REFUSAL = (
    "CREATE OR REPLACE FUNCTION apc_guard.refuse_change() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'"
)
LOG_EVENT = (
    "INSERT INTO apc_log.log_events (shard, seq, epoch, batch_no, kind, actor, detail) "
    "VALUES (0, 99, 1, 1, 'maintenance', 'nobody', '{}')"
)

BY_WRITER = {
    "update": UPDATE,
    "delete": DELETE,
    "truncate": TRUNCATE,
    "drop": DROP,
    "disable triggers": DISABLE,
    "replica": REPLICA,
    "become owner": "SET ROLE apc_owner",
    "copy from program": "COPY apc_log.agent_packets FROM PROGRAM 'true'",
    "lock out": "BEGIN; LOCK TABLE apc_log.agent_packets IN ACCESS EXCLUSIVE MODE",
    "overwrite by upsert": "INSERT INTO apc_log.packet_ids_0_1 SELECT * FROM apc_log.packet_ids "
    "ON CONFLICT (session_id, packet_id) DO UPDATE SET seq = 9",
    "remove a head": "DELETE FROM apc_log.shards",
    "maintain": "SELECT apc_guard.maintain('x')",
    "forge a maintenance": "INSERT INTO apc_guard.maintenance (actor, reason) VALUES ('x', 'x')",
    "exempt": "SELECT apc_guard.exempt('apc_log.agent_packets')",
    "unlist": "DELETE FROM apc_guard.log_tables",
    "add to what the guard alone writes": LOG_EVENT,
    "record as the guard": "SELECT apc_guard.record('maintenance', '{}')",
    "record a maintenance": "SELECT apc_guard.record_maintenance('x')",
    "record an erasure": "SELECT apc_guard.record_erasure('{}')",
    "record a segment": "SELECT apc_guard.record_segment(0, 1, '', '', '{}')",
    "make what takes its place": "SELECT apc_guard.build_thin(0, 1, '{}')",
    "release a segment": "SELECT apc_guard.release(0, 1, '{}')",
    "let a segment expire": "SELECT apc_guard.expire(0, 1)",
    "lift a hold": "SELECT apc_guard.lift_hold(gen_random_uuid())",
    "forge a revision": "UPDATE apc_guard.alembic_version SET version_num = 'x'",
}
BY_READER = {
    "update": UPDATE,
    "delete": DELETE,
    "truncate": TRUNCATE,
    "insert": "INSERT INTO apc_log.packet_ids SELECT * FROM apc_log.packet_ids",
    "open segments": "SELECT apc_guard.open_segments(0, 1, 65536)",
    "record a segment": "SELECT apc_guard.record_segment(0, 1, '', '', '{}')",
    "release a segment": "SELECT apc_guard.release(0, 1, '{}')",
    "hold": "SELECT apc_guard.hold('s', NULL, NULL, 'x', NULL)",
    "move a head": "UPDATE apc_log.shards SET next_seq = 1",
    "change a projection": "UPDATE apc_log.sessions SET state = 'x'",
    "maintain": "SELECT apc_guard.maintain('x')",
}
BY_MIGRATOR = {"update": UPDATE, "delete": DELETE, "truncate": TRUNCATE, "drop": DROP, "disable triggers": DISABLE}
BY_SUPERUSER = {
    "update": UPDATE,
    "delete": DELETE,
    "truncate": TRUNCATE,
    "update as replica": f"{REPLICA}; {UPDATE}",
    "delete as replica": f"{REPLICA}; {DELETE}",
    "truncate as replica": f"{REPLICA}; {TRUNCATE}",
    "disable triggers": DISABLE,
    "disable triggers as replica": f"{REPLICA}; {DISABLE}",
    "drop": DROP,
    "replace the refusal": NO_OP_REFUSAL,
    "add to what the guard alone writes": LOG_EVENT,
    "add to what the guard alone writes as replica": f"{REPLICA}; {LOG_EVENT}",
}
BY_OWNER = {
    "update": UPDATE,
    "delete": DELETE,
    "truncate": TRUNCATE,
    "merge": "MERGE INTO apc_log.packet_events e USING (SELECT 1) s ON true WHEN MATCHED THEN DELETE",
    "overwrite by upsert": BY_WRITER["overwrite by upsert"],
    "delete in a query": "WITH gone AS (DELETE FROM apc_log.agent_packets RETURNING 1) SELECT count(*) FROM gone",
    "disable triggers": DISABLE,
    "enable as replica only": "ALTER TABLE apc_log.agent_packets_0_1 ENABLE REPLICA TRIGGER refuse_row_change",
    "drop a trigger": "DROP TRIGGER refuse_row_change ON apc_log.agent_packets_0_1",
    "rename a trigger": "ALTER TRIGGER refuse_row_change ON apc_log.agent_packets_0_1 RENAME TO gone",
    "replace a trigger": "CREATE OR REPLACE TRIGGER refuse_row_change BEFORE UPDATE ON apc_log.agent_packets_0_1 "
    "FOR EACH ROW WHEN (false) EXECUTE FUNCTION apc_guard.refuse_change()",
    "drop a table": DROP,
    "drop the schema": "DROP SCHEMA apc_log CASCADE",
    "drop everything owned": "DROP OWNED BY apc_owner CASCADE",
    "rewrite a column": "ALTER TABLE apc_log.agent_packets ALTER COLUMN user_id TYPE text USING 'x'",
    "drop a column": "ALTER TABLE apc_log.agent_packets DROP COLUMN signature",
    "rename a column": "ALTER TABLE apc_log.agent_packets RENAME user_id TO gone",
    "rename a table": "ALTER TABLE apc_log.agent_packets RENAME TO gone",
    "move a table": "ALTER TABLE apc_log.agent_packets SET SCHEMA elsewhere",
    "rename the schema": "ALTER SCHEMA apc_log RENAME TO gone",
    "move a view": "ALTER VIEW apc_log.packets SET SCHEMA elsewhere",
    "replace a view": "CREATE OR REPLACE VIEW apc_log.session_state AS SELECT * FROM apc_log.session_state WHERE false",
    "drop a view": "DROP VIEW apc_log.packets CASCADE",
    "replace a function": "CREATE OR REPLACE FUNCTION apc_log.lifecycle_target(event text) RETURNS text "
    "LANGUAGE sql RETURN 'x'",
    "move a function": "ALTER FUNCTION apc_log.lifecycle_target(text) SET SCHEMA elsewhere",
    "drop a constraint": "ALTER TABLE apc_log.agent_packets DROP CONSTRAINT agent_packets_check",
    "drop an index": "DROP INDEX apc_log.agent_packets_run",
    "make an index": "CREATE INDEX ON apc_log.agent_packets (user_id)",
    "make a rule": "CREATE RULE r AS ON INSERT TO apc_log.agent_packets DO INSTEAD NOTHING",
    "make a trigger": "CREATE TRIGGER a BEFORE INSERT ON apc_log.agent_packets FOR EACH ROW "
    "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "make a policy": "CREATE POLICY p ON apc_log.agent_packets USING (false)",
    "hide rows": "ALTER TABLE apc_log.agent_packets ENABLE ROW LEVEL SECURITY",
    "make it unlogged": "ALTER TABLE apc_log.agent_packets_0_1 SET UNLOGGED",
    "update a segment": "UPDATE apc_log.agent_packets_0_1 SET user_id = 'x'",
    "truncate a segment": "TRUNCATE apc_log.agent_packets_0_1",
    "disable the triggers of a segment": "ALTER TABLE apc_log.agent_packets_0_1 DISABLE TRIGGER ALL",
    "drop a segment": "DROP TABLE apc_log.agent_packets_0_1",
    "detach a segment": "ALTER TABLE apc_log.agent_packets DETACH PARTITION apc_log.agent_packets_0_1",
    "attach a table": "CREATE TABLE apc_log.more (LIKE apc_log.agent_packets INCLUDING ALL); "
    "ALTER TABLE apc_log.agent_packets ATTACH PARTITION apc_log.more FOR VALUES FROM (9, 1) TO (9, 2)",
    "attach the rest": "CREATE TABLE apc_log.more PARTITION OF apc_log.agent_packets DEFAULT",
    "move the end of a segment": "ALTER TABLE apc_log.agent_packets DETACH PARTITION apc_log.agent_packets_0_1; "
    "ALTER TABLE apc_log.agent_packets ATTACH PARTITION apc_log.agent_packets_0_1 "
    "FOR VALUES FROM (0, 1) TO (0, 999999)",
    "list a segment elsewhere": "UPDATE apc_guard.segments SET state = 'released'",
    "forget a segment": "DELETE FROM apc_guard.segments",
    "open a segment by hand": "SELECT apc_guard.open_segment(0, 1048577, 1114112)",
    "inherit": "CREATE TABLE pg_temp.child () INHERITS (apc_log.registry_events)",
    "make a table in the log": "CREATE TABLE apc_log.more (a integer)",
    "select into the log": "SELECT 1 AS a INTO apc_log.more",
    "comment": "COMMENT ON TABLE apc_log.agent_packets IS 'x'",
    "grant": "GRANT UPDATE ON apc_log.agent_packets TO apc_writer",
    "grant a column": "GRANT UPDATE (user_id) ON apc_log.agent_packets TO apc_writer",
    "grant the schema": "GRANT CREATE ON SCHEMA apc_log TO apc_writer",
    "revoke": "REVOKE SELECT ON apc_log.agent_packets FROM apc_reader",
    "in a block": f"DO $$ BEGIN EXECUTE '{DISABLE}'; END $$",
    "replace the refusal": NO_OP_REFUSAL,
    "make a function in the guard": "CREATE FUNCTION apc_guard.f() RETURNS int LANGUAGE sql RETURN 1",
    "disable the freeze": "ALTER EVENT TRIGGER apc_guard_ddl DISABLE",
    "drop the freeze": "DROP EVENT TRIGGER apc_guard_drop",
    "replica": REPLICA,
    "event triggers off": "SET event_triggers = off",
    "become superuser": "ALTER ROLE CURRENT_USER SUPERUSER",
    "forge a maintenance": BY_WRITER["forge a maintenance"],
    "forge the marker": f"SET apc_guard.rights = 'x'; {DISABLE}",
    "add to what the guard alone writes": LOG_EVENT,
    "take the right to add to it back": f"GRANT INSERT ON apc_log.log_events TO apc_owner; {LOG_EVENT}",
    "record as the guard": BY_WRITER["record as the guard"],
    "record a maintenance": BY_WRITER["record a maintenance"],
    "become the recorder": f"SET ROLE apc_recorder; {LOG_EVENT}",
    "exempt": "SELECT apc_guard.exempt('apc_log.agent_packets')",
    "unlist": "UPDATE apc_guard.log_tables SET is_append_only = false",
}
BLIND = "CREATE TEMP TABLE {0} AS SELECT * FROM pg_catalog.{0}; SELECT apc_guard.maintain('attack'); "
TRAP = "CREATE FUNCTION elsewhere.trap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'; "
BY_OWNER |= {
    # A temporary table of that name is found before the catalog, unless pg_temp stands last in the search_path.
    "show the guard another catalog of triggers": BLIND.format("pg_trigger") + DISABLE,
    "show the guard another catalog of rules": BLIND.format("pg_rewrite") + "CREATE RULE r AS ON INSERT TO "
    "apc_log.agent_packets DO INSTEAD NOTHING",
    # What the guard itself writes must not run the owner's code with the guard's rights.
    "trap the heads": f"SELECT apc_guard.maintain('attack'); {TRAP}"
    "CREATE TRIGGER t BEFORE UPDATE ON apc_log.shards FOR EACH ROW EXECUTE FUNCTION elsewhere.trap()",
}
IN_MAINTENANCE = (
    "update",
    "delete",
    "truncate",
    "disable triggers",
    "enable as replica only",
    "drop a trigger",
    "rename a trigger",
    "replace a trigger",
    "drop a table",
    "drop the schema",
    "drop everything owned",
    "rewrite a column",
    "drop a column",
    "rename a table",
    "move a table",
    "make a rule",
    "make a trigger",
    "hide rows",
    "make it unlogged",
    "update a segment",
    "truncate a segment",
    "disable the triggers of a segment",
    "drop a segment",
    "detach a segment",
    "attach a table",
    "attach the rest",
    "move the end of a segment",
    "list a segment elsewhere",
    "forget a segment",
    "open a segment by hand",
    "inherit",
    "in a block",
    "replace the refusal",
    "add to what the guard alone writes",
    "take the right to add to it back",
    "record as the guard",
    "become the recorder",
    "exempt",
    "unlist",
)
"""What the owner may not do in a recorded maintenance either."""
MAY_SUPERUSER = (
    "update",
    "delete",
    "truncate",
    "disable triggers",
    "drop a trigger",
    "drop a table",
    "rewrite a column",
    "drop a segment",
    "detach a segment",
)


def attacks() -> list[tuple[str, str, str]]:
    """Role, name, statements."""
    by_role = {
        "apc_writer": BY_WRITER,
        "apc_reader": BY_READER,
        "migrator": BY_MIGRATOR,
        "apc_owner": BY_OWNER,
        "superuser": BY_SUPERUSER,
    }
    inside = [(name, f"SELECT apc_guard.maintain('attack'); {BY_OWNER[name]}") for name in IN_MAINTENANCE]
    return [
        *((role, name, statements) for role, listed in by_role.items() for name, statements in listed.items()),
        *(("apc_owner", f"{name}, in a maintenance", statements) for name, statements in inside),
        *(
            ("superuser", f"{name}, in a maintenance", statements)
            for name, statements in inside
            if name in MAY_SUPERUSER
        ),
    ]


@asynccontextmanager
async def connected_as(log: GuardedLog, role: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection with exactly the rights of a role."""
    connection = await asyncpg.connect(log.url)
    try:
        if role != "superuser":
            await connection.execute(f"SET SESSION AUTHORIZATION {log.migrator if role == 'migrator' else role}")
        yield connection
    finally:
        await connection.close()


async def content(connection: asyncpg.Connection) -> list[str]:
    """Return every row of every table of the log."""
    tables = [row[0] for row in await connection.fetch("SELECT name::text FROM apc_guard.log_tables ORDER BY 1")]
    rows = [await connection.fetch(f"SELECT t::text FROM {table} AS t") for table in tables]
    return [row[0] for row in chain(*rows)]


async def _alone(attacker: asyncpg.Connection, statements: str) -> None:
    """Execute them; again when it met another test of the machine's server that changed the same role."""
    while True:
        try:
            await attacker.execute(statements)
            return
        except asyncpg.InternalServerError as error:
            if "concurrently" not in str(error):
                raise


@pytest.mark.parametrize(("role", "name", "statements"), [pytest.param(*a, id=f"{a[0]}: {a[1]}") for a in attacks()])
async def test_an_attack_is_refused(
    guarded_log: GuardedLog, superuser: asyncpg.Connection, role: str, name: str, statements: str
) -> None:
    before = await content(superuser)
    async with connected_as(guarded_log, role) as attacker:
        # As one implicit transaction, and committed if it went through.
        with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.UndefinedObjectError)) as refusal:
            await attacker.execute(statements)
    if isinstance(refusal.value, asyncpg.UndefinedObjectError):
        assert name == "event triggers off", refusal.value  # PostgreSQL 15 and 16 do not know the setting
    assert await content(superuser) == before
    assert await superuser.fetch("SELECT * FROM apc_guard.faults()") == []

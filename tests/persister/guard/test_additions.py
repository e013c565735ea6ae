"""What decides which rows the log takes: listed for this release, the same on every server, and compared by doctor."""

import os

import asyncpg
import pytest
from tests.persister.guard.conftest import GuardedLog

from apc_persister.database.migrate import FILE, migrations_folder, read_additions, read_objects

KEPT_OUT = "SELECT apc_guard.maintain('attack'); SET LOCAL ROLE apc_owner; "
ADDED = {
    "constraint": (
        "ALTER TABLE apc_log.packet_events ADD CHECK (actor <> 'mallory') NOT VALID",
        "actor <> 'mallory'",
    ),
    "constraint of a projection": ("ALTER TABLE apc_log.sessions ADD CHECK (round < 9)", "sessions: constraint"),
    "unique index": (
        "CREATE UNIQUE INDEX ON apc_log.packet_conflicts_0_1 (kind)",
        "packet_conflicts_0_1: index UNIQUE",
    ),
    "index that fails": ("CREATE INDEX ON apc_log.packet_events ((1 / length(actor)))", "packet_events: index"),
    "not null": ("ALTER TABLE apc_log.packet_conflicts ALTER code SET NOT NULL", "column code is not null"),
    "default": ("ALTER TABLE apc_log.log_events ALTER actor SET DEFAULT 'x'", "log_events: column actor has the value"),
    "policy": ("CREATE POLICY p ON apc_log.sessions USING (false)", "sessions: policy p"),
    "row level security": ("ALTER TABLE apc_log.sessions ENABLE ROW LEVEL SECURITY", "sessions: row level security"),
}


async def test_the_list_is_that_of_a_fresh_database(superuser: asyncpg.Connection) -> None:
    """After a migration of apc_log: APC_WRITE_TABLES=1 writes the list again; look at what changes."""
    path = migrations_folder() / FILE
    found = await read_objects(superuser)
    if os.environ.get("APC_WRITE_TABLES"):
        path.write_text(
            "".join(sorted({f"{table.kind}: {one}\n" for table in found.values() for one in table.objects})),
            encoding="utf-8",
        )
    additions = await read_additions(superuser)
    assert (additions.added, additions.missing) == ((), ()), "write it again with APC_WRITE_TABLES=1"


@pytest.mark.parametrize("what", ADDED)
async def test_what_an_owner_added_is_listed(guarded_log: GuardedLog, superuser: asyncpg.Connection, what: str) -> None:
    statement, said = ADDED[what]
    undone = superuser.transaction()
    await undone.start()
    await superuser.execute(KEPT_OUT + statement)
    additions = await read_additions(superuser)
    assert any(said in line for line in additions.added), additions
    await undone.rollback()


async def test_a_row_is_kept_out_by_a_check(guarded_log: GuardedLog, superuser: asyncpg.Connection) -> None:
    """The act itself works: the guard protects rows that are there, not those that are still to come."""
    undone = superuser.transaction()
    await undone.start()
    await superuser.execute(KEPT_OUT + ADDED["constraint"][0])
    with pytest.raises(asyncpg.CheckViolationError):
        await superuser.execute(
            "INSERT INTO apc_log.packet_events SELECT (jsonb_populate_record(one, "
            """'{"seq": 99, "actor": "mallory", "attempt": 9}')).* FROM apc_log.packet_events AS one LIMIT 1"""
        )
    await undone.rollback()


async def test_what_is_gone_is_listed(guarded_log: GuardedLog, superuser: asyncpg.Connection) -> None:
    undone = superuser.transaction()
    await undone.start()
    await superuser.execute(KEPT_OUT + "ALTER TABLE apc_log.agent_packets DROP CONSTRAINT agent_packets_check1")
    additions = await read_additions(superuser)
    assert [line.partition(" CHECK")[0] for line in additions.missing] == [
        "agent_packets: constraint agent_packets_check1",
        "agent_packets_0_1: constraint agent_packets_check1",
    ]
    await undone.rollback()

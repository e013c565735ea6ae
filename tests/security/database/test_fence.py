"""Who may write the log of a shard in a database that does not have it: nobody, by the login of any service."""

import asyncpg
import pytest
from tests.security.database.conftest import Logins

ROLES = ("apc_writer", "apc_reader", "apc_mover", "apc_archiver", "apc_agent")
HEADS = "INSERT INTO apc_log.shards (shard, epoch, batch_no, next_seq) VALUES (1, 1, 1, 1), (2, 1, 1, 1)"
FORK = "INSERT INTO apc_log.shards (shard, epoch, batch_no, next_seq) VALUES (3, 1, 1, 1)"
REOPEN = "UPDATE apc_log.shards SET moved_to = NULL WHERE shard = 2"
WRITE_ON = "UPDATE apc_log.shards SET next_seq = next_seq + 1 WHERE shard = 2"
CLOSE = "UPDATE apc_log.shards SET moved_to = 'east' WHERE shard = 1"
ANOTHER = "UPDATE apc_log.shards SET shard = 3 WHERE shard = 1"
ACTS = (
    "SELECT apc_guard.place_shard(3, true)",
    "SELECT apc_guard.name_database('east')",
    "SELECT apc_guard.close_shard(1, 'east')",
    "SELECT apc_guard.expect_shard(3)",
    "SELECT apc_guard.open_shard(2)",
    "SELECT apc_guard.adopt_events(2, '[]')",
    "SELECT apc_guard.adopt_segment('{}')",
    "SELECT apc_guard.adopt_hold('{}')",
    "SELECT apc_guard.forget_counts(2)",
    "UPDATE apc_guard.shards_here SET state = 'here'",
    "UPDATE apc_guard.database_name SET name = 'east'",
    "ALTER TABLE apc_log.shards DISABLE TRIGGER fence_shard",
)


async def prepare(connection: asyncpg.Connection) -> None:
    """Let shard 1 be here, shard 2 have left, and shard 3 be placed in another database."""
    for shard in (1, 2):
        await connection.execute(
            f"INSERT INTO apc_log.shards (shard, epoch, batch_no, next_seq) VALUES ({shard}, 1, 1, 1)"
        )
    await connection.execute("SELECT apc_guard.close_shard(2, 'east')")
    await connection.execute("SELECT apc_guard.place_shard(3, false)")


async def succeeded(connection: asyncpg.Connection, role: str, statement: str) -> bool:
    """Return whether a role can do it; nothing of it stays."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"SET LOCAL ROLE {role}")
        await connection.execute(statement)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.ObjectNotInPrerequisiteStateError):
        return False
    else:
        return True
    finally:
        await transaction.rollback()


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_no_service_forks_or_closes_the_log_of_a_shard(logins: Logins, is_guarded: bool) -> None:
    """Without the trigger the log writer's login can do each of it."""
    connection = await asyncpg.connect(logins.url)
    try:
        await prepare(connection)
        if not is_guarded:
            await connection.execute("ALTER EVENT TRIGGER apc_guard_ddl DISABLE")
            await connection.execute("ALTER TABLE apc_log.shards DISABLE TRIGGER fence_shard")
        forged = [one for one in (FORK, REOPEN, WRITE_ON, CLOSE, ANOTHER) if await succeeded(connection, ROLES[0], one)]
        assert forged == ([] if is_guarded else [FORK, REOPEN, WRITE_ON, CLOSE, ANOTHER])
        writes = "UPDATE apc_log.shards SET next_seq = next_seq + 1 WHERE shard = 1"
        assert await succeeded(connection, "apc_writer", writes), "the shard that is here goes on"
    finally:
        await connection.close()


async def test_only_the_owner_places_and_moves(logins: Logins) -> None:
    """The acts work for who may: the same statement by the owner of the log."""
    connection = await asyncpg.connect(logins.url)
    try:
        await prepare(connection)
        for role in ROLES:
            assert [act for act in ACTS if await succeeded(connection, role, act)] == [], role
        assert await succeeded(connection, "apc_owner", ACTS[0]) and await succeeded(connection, "apc_owner", ACTS[2])
    finally:
        await connection.close()

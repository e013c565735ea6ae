"""Who may say which orchestrator takes a shard: members of apc_mover, in their own name."""

import asyncpg
import pytest
from tests.security.database.conftest import Logins

from apc_log.placement import move_shard, read_moved_shards

ROLES = ("apc_reader", "apc_agent", "apc_state_reader", "apc_settler", "apc_door")
ROW = "SELECT orchestrator, moved_by FROM apc_log.shard_places WHERE shard = 0"
OPEN_TO_ALL = """
SELECT apc_guard.maintain('a test');
GRANT EXECUTE ON FUNCTION apc_log.place_shard(integer, text) TO PUBLIC
"""


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_else_moves_a_shard(logins: Logins, is_guarded: bool) -> None:
    """Without the guard every reader of the log may."""
    async with logins.admin.acquire() as connection, connection.transaction():
        if not is_guarded:
            await connection.execute(OPEN_TO_ALL)
        moved = []
        for role in ROLES:
            try:
                async with connection.transaction():
                    await connection.execute(f"SET LOCAL ROLE {role}")
                    await connection.execute("SELECT apc_log.place_shard(0, 'mine')")
                    moved.append(role)
                    await connection.execute("RESET ROLE")
            except asyncpg.InsufficientPrivilegeError:
                pass
        assert moved == ([] if is_guarded else ["apc_reader"]), "the others may not even look into the schema"


async def test_an_agent_moves_no_shard_and_a_mover_does_it_in_the_own_name(logins: Logins) -> None:
    """The act works for who may: the same statement with the role apc_mover."""
    pool = await logins.pool("a")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await move_shard(pool, 0, "mine")
    async with logins.admin.acquire() as connection:
        await connection.execute("SET ROLE apc_mover")
        await connection.execute("SELECT apc_log.place_shard(0, 'gate-1')")
        for forged in ("INSERT INTO apc_log.shard_places VALUES (1, 'gate-1', now(), 'somebody')", ROW):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(forged)
        await connection.execute("RESET ROLE")
        row = await connection.fetchrow(ROW)
        assert row is not None and row["orchestrator"] == "gate-1"
        assert row["moved_by"] == await connection.fetchval("SELECT session_user")
    assert await read_moved_shards(logins.admin) == {0: "gate-1"}
    for wrong in ((300, "gate-1"), (0, "a b"), (0, "")):
        with pytest.raises(asyncpg.CheckViolationError):
            await move_shard(logins.admin, *wrong)
    await move_shard(logins.admin, 0, None)
    assert await read_moved_shards(logins.admin) == {}

"""What an agent's login may read and write in the tables of the memory."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.minds.memory.conversations import talk

from apc_bus.database import open_pool
from apc_minds.memory import (
    PostgresMemoryStore,
)


@pytest.mark.postgres
class TestRowLevelSecurity:
    """What somebody with the database connection of an agent, but without its store, gets to see."""

    @pytest.fixture
    async def connection(self, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
        pool = await open_pool(postgres_url)
        store = PostgresMemoryStore(pool, "mine")
        await store.store_conversation("s-1", "u-1", talk("s-1", "secret"))
        await store.store_agent_state("a-1", "u-1", "k", "secret")
        await pool.close()
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("SET SESSION AUTHORIZATION apc_agent")
        yield connection
        await connection.close()

    @pytest.mark.parametrize("owner", [None, "", "other"])
    async def test_nobody_reads_or_writes_across_owners(
        self, connection: asyncpg.Connection, owner: str | None
    ) -> None:
        if owner is not None:
            await connection.execute("SELECT set_config('apc.owner', $1, false)", owner)
        for table in ("conversation_history", "agent_state_store"):
            assert await connection.fetch(f"SELECT * FROM apc_app.{table}") == []
            assert await connection.execute(f"UPDATE apc_app.{table} SET revision = 9") == "UPDATE 0"
            assert await connection.execute(f"UPDATE apc_app.{table} SET is_removed = true") == "UPDATE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(
                "INSERT INTO apc_app.agent_state_store (agent_id, owner_id, state_key, state_value, owner) "
                "VALUES ('a-1', 'u-1', 'j', '1', 'mine')"
            )
        await connection.execute("SELECT set_config('apc.owner', 'mine', false)")
        for table in ("conversation_history", "agent_state_store"):
            assert await connection.fetchval(f"SELECT revision FROM apc_app.{table}") == 1
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute("UPDATE apc_app.agent_state_store SET owner = 'other'")

    async def test_an_agent_cannot_lift_the_policies(self, connection: asyncpg.Connection) -> None:
        for statement in (
            "ALTER TABLE apc_app.conversation_history DISABLE ROW LEVEL SECURITY",
            "DROP POLICY owners ON apc_app.agent_state_store",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute("SET row_security = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.fetch("SELECT * FROM apc_app.conversation_history")

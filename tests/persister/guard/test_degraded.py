"""A server that gives no superuser, and a superuser who lifts the guard: what is left, and that it is said."""

import re
import secrets
from collections.abc import AsyncIterator

import asyncpg
import pytest
from structlog.testing import capture_logs
from tests.persister.guard.conftest import GuardedLog
from tests.support.log import LogBench, ScriptedGate, lift_guard
from tests.support.servers import PostgresServer

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_persister.database.guard import EVENT_TRIGGERS, GuardState, read_guard
from apc_persister.database.migrate import migrate


@pytest.fixture
async def managed_url(server: PostgresServer) -> AsyncIterator[str]:
    """URL of an empty database as its owner, who is no superuser."""
    name = f"apc_test_{secrets.token_hex(6)}"
    await server._execute(f"CREATE ROLE {name} LOGIN PASSWORD 'p'")
    await server._execute(f"CREATE DATABASE {name} OWNER {name} TEMPLATE template0")
    yield re.sub("//[^/]*@", f"//{name}:p@", server.url_of(name))
    await server.drop(name)
    await server._execute(f"DROP ROLE {name}")


async def guard_of(pool: asyncpg.Pool) -> GuardState:
    """Return the guard as a user of the pool sees it."""
    async with pool.acquire() as connection:
        return await read_guard(connection)


@pytest.mark.long
async def test_without_a_superuser_triggers_are_left_and_it_is_said(
    managed_url: str, memory_broker: InMemoryBroker
) -> None:
    with capture_logs() as said:
        await migrate(managed_url)
    assert [event for event in said if event["event"] == "log_guard_degraded"]
    pool = await open_pool(managed_url, max_size=2)
    try:
        gate = ScriptedGate(memory_broker.connect("orchestrator"))
        with capture_logs() as said:
            await gate.open()
            await LogBench(gate, memory_broker.connect("persister"), pool).write()
        assert [event["log_level"] for event in said if event["event"] == "log_guard_degraded"] == ["warning"]

        state = await guard_of(pool)
        assert not state.holes
        assert "event trigger apc_guard_ddl is missing or disabled" in state.lacks
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="append-only"):
            await pool.execute("DELETE FROM apc_log.shard_epochs")

        # What the freeze would refuse: the owner of the tables may do it here, and it is seen.
        await pool.execute("ALTER TABLE apc_log.shard_epochs DISABLE TRIGGER ALL")
        await pool.execute("CREATE TABLE apc_log.own (a integer)")
        holes = " ".join((await guard_of(pool)).holes)
        assert "apc_log.shard_epochs lacks trigger refuse_row_change" in holes
        assert "apc_log.own is not known to the guard" in holes
    finally:
        await pool.close()


async def test_a_superuser_completes_the_guard_later(server: PostgresServer, managed_url: str) -> None:
    await migrate(managed_url)
    owner = await asyncpg.connect(managed_url)
    try:
        await owner.execute("ALTER TABLE apc_log.packet_ids DISABLE TRIGGER ALL")
        await migrate(server.url_of(managed_url.split("?")[0].rpartition("/")[2]))

        assert (await read_guard(owner)).is_full
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute("ALTER TABLE apc_log.packet_ids DISABLE TRIGGER ALL")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await owner.execute("DELETE FROM apc_log.packet_ids")
    finally:
        await owner.close()


async def test_prevention_ends_at_the_superuser_and_it_is_seen(fresh_log: GuardedLog) -> None:
    connection = await asyncpg.connect(fresh_log.url)
    try:
        assert (await read_guard(connection)).is_full
        await lift_guard(connection)
        for table in ("agent_packets", "agent_packets_0_1"):
            await connection.execute(f"ALTER TABLE apc_log.{table} DISABLE TRIGGER ALL")
        await connection.execute("UPDATE apc_log.agent_packets SET user_id = 'x'")

        state = await read_guard(connection)
        assert state.lacks == tuple(f"event trigger {name} is missing or disabled" for name in EVENT_TRIGGERS)
        assert any("agent_packets lacks trigger" in hole for hole in state.holes)

        await migrate(fresh_log.url)
        assert (await read_guard(connection)).is_full
        reasons = await connection.fetch("SELECT detail->>'reason' FROM apc_log.log_events WHERE shard = 0")
        assert [row[0] for row in reasons] == ["the guard was installed again"]
    finally:
        await connection.close()

"""The login of a host, against the rows of agents that do not run there."""

import secrets
from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import asyncpg
import pytest
from tests.orchestrator.conftest import House, house, start
from tests.orchestrator.registering.test_speaks import register
from tests.security.database.conftest import PASSWORD

from apc_agents.task_port import NewTask, TaskSpec
from apc_bus.database import open_pool
from apc_contracts.agent import ActionType, SecurityLevel
from apc_minds.tasks.postgres import PostgresTaskStore
from apc_persister.database.logins import end_login, host_owner, make_login

__all__ = ["house", "start"]

TASKS = "SELECT agent_id FROM apc_app.agent_tasks ORDER BY agent_id"
FREED = "ALTER TABLE apc_app.{} DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY"


@pytest.fixture
def host() -> str:
    """A host of this test: logins are of the whole server."""
    return f"h{secrets.token_hex(4)}"


@pytest.fixture
async def login(house: House, postgres_url: str, host: str) -> AsyncIterator[asyncpg.Pool]:
    """A pool as the login of the host."""
    await make_login(house.pool, host_owner(host), PASSWORD)
    parts = urlsplit(postgres_url)
    place = parts.netloc.rpartition("@")[2]
    pool = await open_pool(urlunsplit(parts._replace(netloc=f"host.{host}:{PASSWORD}@{place}")), max_size=2)
    yield pool
    await pool.close()
    assert await end_login(house.pool, host_owner(host)), "it is gone with the last agent"


def task_of(agent_id: str) -> NewTask:
    spec = TaskSpec(action_id="a", action="transfer", type=ActionType.TOOL, security_level=SecurityLevel.PUBLIC)
    return NewTask(uuid4(), agent_id, "s-1", spec)


async def seen(pool: asyncpg.Pool) -> list[str]:
    return [row["agent_id"] for row in await pool.fetch(TASKS)]


async def test_a_host_has_the_rows_of_its_agents_alone(house: House, login: asyncpg.Pool, host: str) -> None:
    async with house.persister(), house.gate():
        await house.register()
        for agent_id in ("red-1", "sentinel", "blue-1"):
            await PostgresTaskStore(house.pool).add(task_of(agent_id))
        assert await seen(login) == [], "nobody runs there yet"
        await register(house, "red-1", host=host, broker_user=f"host.{host}")
        await register(house, "blue-1", host="other", broker_user="host.other")
        await PostgresTaskStore(login).add(task_of("red-1"))
        assert await seen(login) == ["red-1", "red-1"]
        for stolen in ("sentinel", "blue-1"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
                await PostgresTaskStore(login).add(task_of(stolen))
        await house.pool.execute(FREED.format("agent_tasks"))
        assert len(await seen(login)) == 4, "once the guard is away"


async def test_the_rows_of_an_agent_move_with_it(house: House, login: asyncpg.Pool, host: str) -> None:
    async with house.persister(), house.gate():
        await house.register()
        await PostgresTaskStore(house.pool).add(task_of("red-1"))
        await register(house, "red-1", host=host, broker_user=f"host.{host}")
        assert await seen(login) == ["red-1"]
        await register(house, "red-1", host="other", broker_user="host.other")
        assert await seen(login) == []
        await house.pool.execute(FREED.format("agent_tasks"))
        assert await seen(login) == ["red-1"], "once the guard is away"


async def test_a_host_makes_no_objects_of_the_database(house: House, login: asyncpg.Pool) -> None:
    statement = "CREATE TEMPORARY TABLE planted (id integer)"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="makes and changes no objects"):
        await login.execute(statement)
    await house.pool.execute("DROP EVENT TRIGGER apc_access_agents")
    await login.execute(statement)  # once the guard is away

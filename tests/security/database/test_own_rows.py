"""An agent with its own login of the database, against the rows of another."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest
from tests.security.database.conftest import Logins
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, Tick
from apc_agents.actions import ToolRegistry
from apc_agents.errors import StateInvalid
from apc_agents.handling.state import PostgresStateStore
from apc_agents.memory import (
    ConversationContext,
    ConversationMessage,
    NewMessages,
    PostgresMemoryStore,
    Removed,
    StaleRevision,
)
from apc_agents.memory.conversation import OwnerForeign
from apc_agents.scheduling import PostgresScheduleStore
from apc_agents.tasks.postgres import PostgresTaskStore
from apc_agents.tasks.runner import TaskRunner
from apc_agents.tasks.store import NewTask, Task, TaskSpec, TaskStatus
from apc_contracts.agent import ActionType, SecurityLevel

TABLES = ("agent_tasks", "agent_task_events", "agent_task_effects", "agent_effects")


def transfer(agent_id: str, level: SecurityLevel) -> NewTask:
    spec = TaskSpec(action_id="a", action="transfer", type=ActionType.TOOL, security_level=level)
    return NewTask(uuid4(), agent_id, "s-1", spec)


class Bank:
    """The victim: its runner, and a tool that only an admin may use."""

    def __init__(self, agent_id: str, pool: asyncpg.Pool) -> None:
        self.transfers = 0
        self.agent_id = agent_id
        self.store = PostgresTaskStore(pool)
        self.tools = ToolRegistry()

        @self.tools.tool(security_level=SecurityLevel.ADMIN)
        async def transfer() -> None:
            self.transfers += 1

    async def run_until_ended(self, task: Task, level: SecurityLevel) -> Task:
        async def announce(event: object) -> None: ...

        async def has_finished() -> bool:
            return (await self.store.get(task.task_id)).finished_at is not None

        poll = timedelta(milliseconds=20)
        runner = TaskRunner(self.agent_id, self.tools, self.store, announce, security_level=level, poll=poll)
        running = asyncio.create_task(runner.run())
        try:
            await until(has_finished, 60)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        return await self.store.get(task.task_id)


async def test_a_task_for_another_agent_is_refused(logins: Logins) -> None:
    thief, victim = await logins.pool("thief"), await logins.pool("bank")
    stolen = transfer(logins.agent("bank"), SecurityLevel.ADMIN)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await PostgresTaskStore(thief).add(stolen)
    for table in TABLES[:2]:
        await logins.open_to_all(table)
    task = await PostgresTaskStore(thief).add(stolen)
    bank = Bank(logins.agent("bank"), victim)
    assert (await bank.run_until_ended(task, SecurityLevel.ADMIN)).status is TaskStatus.SUCCEEDED
    assert bank.transfers == 1, "the act works once the guard is away"


async def test_the_level_of_a_row_does_not_authorise_its_tool(logins: Logins) -> None:
    bank = Bank(logins.agent("bank"), await logins.pool("bank"))
    task = await bank.store.add(transfer(logins.agent("bank"), SecurityLevel.ADMIN))
    ended = await bank.run_until_ended(task, SecurityLevel.USER)
    assert (ended.status, bank.transfers) == (TaskStatus.FAILED, 0)
    assert ended.error == "'transfer' needs the security_level admin now, this is user"
    task = await bank.store.add(transfer(logins.agent("bank"), SecurityLevel.ADMIN))
    assert (await bank.run_until_ended(task, SecurityLevel.ADMIN)).status is TaskStatus.SUCCEEDED
    assert bank.transfers == 1, "the act works for a runner of that level"


async def test_the_tasks_of_another_are_neither_seen_nor_changed(logins: Logins) -> None:
    thief, victim = await logins.pool("thief"), await logins.pool("bank")
    store = PostgresTaskStore(victim)
    task = await store.add(transfer(logins.agent("bank"), SecurityLevel.USER))
    assert await store.claim(logins.agent("bank"), "w", timedelta(minutes=1))

    async def effect(made: object) -> int:
        return 1

    await store.once(task.task_id, 1, "pay", effect)
    for table in TABLES[:3]:
        assert await thief.fetchval(f"SELECT count(*) FROM apc_app.{table}") == 0
        assert await thief.execute(f"DELETE FROM apc_app.{table}") == "DELETE 0"
        assert await victim.fetchval(f"SELECT count(*) FROM apc_app.{table}") > 0
        assert await logins.admin.fetchval(f"SELECT count(*) FROM apc_app.{table}") > 0
    event = "INSERT INTO apc_app.agent_task_events (task_id, number, packet_id, document) VALUES ($1, 99, $1, '{}')"
    effect_row = "INSERT INTO apc_app.agent_task_effects (task_id, name) VALUES ($1, 'forged')"
    for statement in (event, effect_row):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await thief.execute(statement, task.task_id)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await victim.execute("UPDATE apc_app.agent_tasks SET agent_id = $1", logins.agent("thief"))
    for table in TABLES[:3]:
        await logins.open_to_all(table)
    for statement in (event, effect_row):
        await thief.execute(statement, task.task_id)
    await victim.execute("UPDATE apc_app.agent_tasks SET agent_id = $1", logins.agent("thief"))
    for table in reversed(TABLES[:3]):
        assert await thief.fetchval(f"SELECT count(*) FROM apc_app.{table}") > 0
        assert await thief.execute(f"DELETE FROM apc_app.{table}") != "DELETE 0", "the acts work without the guard"


async def test_an_effect_of_another_is_not_claimed(logins: Logins) -> None:
    thief = await logins.pool("thief")
    claim = (
        "INSERT INTO apc_app.agent_effects"
        " (packet_id, agent_id, key, claim_id, session_id, worker, lease_until, expires_at)"
        " VALUES (gen_random_uuid(), $1, 'pay', gen_random_uuid(), 's', 'w', now(), now())"
    )
    await thief.execute(claim, logins.agent("thief"))
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await thief.execute(claim, logins.agent("bank"))
    await logins.open_to_all("agent_effects")
    await thief.execute(claim, logins.agent("bank"))


async def test_a_schedule_of_another_is_not_moved(logins: Logins) -> None:
    """Who moves it on suppresses what is due."""
    thief, victim = await logins.pool("thief"), await logins.pool("bank")
    schedule = Agent("bank", role="r", swarm="s")
    schedule.every("0 7 * * *")(pay)
    store, bank = PostgresScheduleStore(victim), logins.agent("bank")
    began = datetime(2027, 3, 1, tzinfo=UTC)
    await store.register(bank, schedule.schedules, began)
    ahead = "UPDATE apc_app.schedules SET fired_until = fired_until + interval '9 years'"
    add = "UPDATE apc_app.schedules SET agent_id = $1"
    assert await thief.execute(ahead) == "UPDATE 0"
    assert await store.fired_until(bank, "pay") == began
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        await victim.execute(add, logins.agent("thief"))
    await logins.open_to_all("schedules")
    assert await thief.execute(ahead) == "UPDATE 1"
    await victim.execute(add, logins.agent("thief"))


async def pay(tick: Tick, ctx: HandlerContext) -> None: ...


async def test_the_state_of_another_is_not_reached_by_naming_its_owner(logins: Logins) -> None:
    thief, victim = await logins.pool("thief"), await logins.pool("bank")
    bank = logins.agent("bank")
    await PostgresStateStore(victim).save(bank, "s-1", b'{"balance": 1}', 0)
    stolen = PostgresStateStore(thief)  # sets apc.owner, as anybody can
    assert await stolen.load(bank, "s-1") is None
    with pytest.raises(StateInvalid):
        await stolen.save(bank, "s-2", b'{"balance": 0}', 0)
    for setting in ("apc", bank, ""):
        async with thief.acquire() as connection, connection.transaction():
            await connection.execute("SELECT set_config('apc.owner', $1, true)", setting)
            assert await connection.execute("UPDATE apc_app.agent_state_store SET state_value = '{}'") == "UPDATE 0"
    assert await PostgresStateStore(victim).load(bank, "s-1") == (b'{"balance": 1}', 1)
    await logins.admin.execute("DROP POLICY agents ON apc_app.agent_state_store")
    assert await stolen.load(bank, "s-1") is not None, "the act works once the guard is away"


def said_by(logins: Logins, letter: str, at: datetime) -> NewMessages:
    message = ConversationMessage(role="user", content=letter, timestamp=at, metadata={"message_id": letter})
    return NewMessages("s-1", "ada", logins.agent(letter), (message,))


async def said_in(store: PostgresMemoryStore) -> list[str]:
    kept = await store.retrieve_conversation("s-1")
    return [] if kept is None else [message.content for message in kept.messages]


async def test_agents_of_a_session_add_to_one_conversation(logins: Logins) -> None:
    """It is shared by the protocol: operators see all of it, an agent what it heard and said itself."""
    now = datetime.now(UTC)
    for number, letter in enumerate("bac"):
        store = PostgresStateStore(await logins.pool(letter))
        agent = logins.agent(letter)
        assert await store.save(agent, "s-1", b"{}", 0, said_by(logins, letter, now + timedelta(seconds=number))) == 1
    whole = PostgresMemoryStore(logins.admin)
    kept = await whole.retrieve_conversation("s-1")
    assert kept is not None and [message.content for message in kept.messages] == ["b", "a", "c"]
    assert kept.agent_participants == tuple(logins.agent(letter) for letter in "bac")
    (listed,) = await whole.list_conversations_for_user("ada")
    assert (listed["message_count"], listed["revision"]) == (3, 3)
    (found,) = await whole.search_conversations("ada", "a")
    assert found["session_id"] == "s-1" and found["message_count"] == 3
    with pytest.raises(StaleRevision):
        await whole.store_conversation("s-1", "ada", kept.model_copy(update={"revision": 2}))
    await whole.store_conversation("s-1", "ada", kept.model_copy(update={"messages": kept.messages[:1]}))
    assert await said_in(whole) == ["b"]
    assert await whole.erase_user("ada") == Removed(1, 3)


async def test_the_conversation_of_another_is_neither_seen_nor_changed(logins: Logins) -> None:
    thief, victim = await logins.pool("thief"), await logins.pool("bank")
    now = datetime.now(UTC)
    await PostgresStateStore(victim).save(logins.agent("bank"), "s-1", b"{}", 0, said_by(logins, "bank", now))
    stolen = PostgresMemoryStore(thief)
    assert await stolen.retrieve_conversation("s-1") is None
    assert await stolen.list_conversations_for_user("ada") == []
    assert await stolen.search_conversations("ada", "bank") == []
    await stolen.store_conversation("s-1", "ada", ConversationContext(session_id="s-1"))
    await stolen.delete_conversation("s-1")
    assert await stolen.erase_user("ada") == Removed(0, 0)
    async with thief.acquire() as connection, connection.transaction():
        await connection.execute("SELECT set_config('apc.owner', 'apc', true)")
        assert await connection.execute("UPDATE apc_app.conversation_history SET version = ''") == "UPDATE 0"
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
            await connection.execute(
                "INSERT INTO apc_app.conversation_history "
                "(session_id, user_id, conversation_data, version, owner, search, made_by) "
                "VALUES ('s-2', 'ada', '{}', '1.0', 'apc', '', $1)",
                logins.agent("bank"),
            )
    assert await said_in(PostgresMemoryStore(victim)) == ["bank"]
    await logins.admin.execute("DROP POLICY agents ON apc_app.conversation_history")
    assert await said_in(stolen) == ["bank"], "the act works once the guard is away"


async def test_a_state_of_another_agent_cannot_be_planted(logins: Logins) -> None:
    thief = await logins.pool("thief")
    with pytest.raises(OwnerForeign):
        await PostgresMemoryStore(thief).store_agent_state(logins.agent("bank"), "s-1", "plan", {"pay": "me"})
    await logins.open_to_all("agent_state_store")
    await PostgresMemoryStore(thief).store_agent_state(logins.agent("bank"), "s-1", "plan", {"pay": "me"})


async def test_other_sessions_names_do_not_help(logins: Logins) -> None:
    thief = await logins.pool("thief")
    await logins.pool("bank")
    for statement in (
        f'SET SESSION AUTHORIZATION "agent.{logins.agent("bank")}"',
        f'SET ROLE "agent.{logins.agent("bank")}"',
        "SET ROLE apc_logins",
        "SET ROLE apc_owner",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await thief.execute(statement)
    async with thief.acquire() as connection:
        await connection.execute("SET row_security = off")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.fetch("SELECT * FROM apc_app.agent_tasks")
        await logins.open_to_all("agent_tasks")
        await connection.fetch("SELECT * FROM apc_app.agent_tasks")
        for role in (f"agent.{logins.agent('bank')}", "apc_owner"):
            await logins.admin.execute(f'GRANT "{role}" TO "agent.{logins.agent("thief")}"')
            await connection.execute(f'SET ROLE "{role}"; RESET ROLE')
            await logins.admin.execute(f'REVOKE "{role}" FROM "agent.{logins.agent("thief")}"')

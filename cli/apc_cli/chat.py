"""The agent to talk to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from apc_agents.emission import Builder, Draft
from apc_agents.emitter import Acknowledgements, ClaimChecks, Emitter, Sign
from apc_agents.keys import find_key
from apc_agents.running.delivery import KnownSessions
from apc_agents.task_port import TaskEvent, TaskStore
from apc_agents.team import load_agent
from apc_bus.concurrency import Health, cancelled, keep_running
from apc_bus.database import open_pool
from apc_bus.port import Bus
from apc_bus.settings import BusSettings, DatabaseSettings, WorkerSettings
from apc_cli.chat_screen import COMMANDS, Screen, make_screen, parse_command
from apc_cli.connections import PATIENCE, database_url, holds_database, open_bus
from apc_cli.errors import InputUnusable, ModuleUnusable
from apc_client.sending import answer_to
from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ApcError
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.vocabulary import Channel
from apc_log.queries import get_session
from apc_minds.context.compression import CompressionAudit, OnCompression, audit_payload
from apc_minds.llm import Dialogue, LLMAgent
from apc_minds.memory import BaseMemoryStore, InMemoryMemoryStore, PostgresMemoryStore
from apc_minds.tasks.in_memory import InMemoryTaskStore
from apc_minds.tasks.postgres import PostgresTaskStore
from apc_minds.tasks.runner import TaskRunner


def chat_agent(name: str | None) -> LLMAgent:
    """Return the agent of `module:agent`; without a name, one without tools that uses the model of APC_LLM_MODEL.

    Raises:
        ModuleUnusable: it is not an LLM agent.
        AgentNotFound, AgentInvalid: there is no such agent.
        ModelUnusable: it has no model.
    """
    agent = LLMAgent("assistant", role="assistant", swarm="chat") if name is None else load_agent(name)
    if not isinstance(agent, LLMAgent):
        raise ModuleUnusable(f"{name} is no LLM agent: make it an apc_minds.llm.LLMAgent")
    _ = agent.mind  # report what is wrong with the model before anybody types
    return agent


# Where conversations are stored: the database of APC_DATABASE_URL, the embedded one, or this process.

NEEDED_TABLE = "apc_app.conversation_history"


@dataclass(frozen=True, slots=True)
class ChatMemory:
    """The memory of one user."""

    store: BaseMemoryStore
    pool: asyncpg.Pool | None = None
    """None = conversations end with this process."""

    def of(self, user: str) -> BaseMemoryStore:
        """Return the memory of another user; users do not see each other's."""
        return self.store.for_owner(user)


@asynccontextmanager
async def open_memory(user: str) -> AsyncIterator[ChatMemory]:
    """Open the memory of a user.

    Raises:
        InputUnusable: the database is older than this version, or the data folder may not be read.
        DatabaseUnavailable: it does not answer.
    """
    bus, database = BusSettings(), DatabaseSettings()
    if database.database_url is None and not holds_database(bus.data_dir):
        yield ChatMemory(InMemoryMemoryStore(user))
        return
    async with database_url(bus, database) as url:
        pool = await open_pool(url, max_size=4, wait=PATIENCE)
        try:
            if await pool.fetchval("SELECT to_regclass($1)", NEEDED_TABLE) is None:
                raise InputUnusable(f"this database has no {NEEDED_TABLE}: run `apc migrate`, or `apc up` once")
            yield ChatMemory(PostgresMemoryStore(pool, user, sees_others=False), pool)
        finally:
            await pool.close()


# The tasks that a chat starts: stored with the conversation, and run by this process.


@asynccontextmanager
async def running_tasks(agent: LLMAgent, memory: ChatMemory) -> AsyncIterator[TaskStore]:
    """Yield the store of the agent's tasks, which run while it is open.

    The next process continues what is left.
    """
    store: TaskStore = InMemoryTaskStore() if memory.pool is None else PostgresTaskStore(memory.pool, agent.agent_id)
    if agent.tools is None:
        yield store
        return
    settings = WorkerSettings()
    runner = TaskRunner(
        agent.agent_id,
        agent.tools,
        store,
        _untold,
        security_level=agent.security_level,
        concurrency=settings.task_concurrency,
        lease=settings.task_lease,
        poll=settings.task_poll,
    )
    keeping = keep_running(runner.run, task="the runner of tasks", health=Health(), stop=asyncio.Event())
    running = asyncio.create_task(keeping)
    try:
        yield store
    finally:
        await cancelled(running)


async def _untold(event: TaskEvent) -> None:
    """Ignore an event: there is no bus; /tasks shows the tasks, and the agent learns of them with the next message."""


# Record the compressions of a chat in the log of a running system, if the session runs on a bus.


@asynccontextmanager
async def audited_compressions(
    agent: LLMAgent, session_id: str, pool: asyncpg.Pool | None
) -> AsyncIterator[OnCompression | None]:
    """Yield the callback that records each compression before it takes effect; None without a bus or such a session.

    The callback raises InputUnusable when the gate refuses, ServiceAway or BusError when it cannot be reached: the
    conversation then stays as it was.
    """
    settings = BusSettings()
    if not settings.amqp_nodes or pool is None or await get_session(pool, session_id) is None:
        yield None
        return
    async with open_bus(settings) as bus:
        yield _auditor(agent, session_id, bus, pool)


def _auditor(agent: LLMAgent, session_id: str, bus: Bus, pool: asyncpg.Pool) -> OnCompression:
    settings = WorkerSettings()
    key = find_key(settings, agent.agent_id)
    sign: Sign | None = None if key is None else key.sign
    emitter = Emitter(
        bus,
        Builder(agent.actor, KnownSessions(agent.agent_id)),
        Acknowledgements(),
        load_contract(settings.contract),
        settings,
        ClaimChecks(None, 0),  # 500 compressions fit into a packet
        sign=sign,
        deliver_locally=lambda packet: None,
    )

    async def tell(audit: CompressionAudit) -> None:
        row = await get_session(pool, session_id)
        assert row is not None, "a log forgets no session"
        for metadata in audit.metadata():
            draft = Draft(
                payload=audit_payload(metadata),
                to=agent.agent_id,
                channel=Channel.INTRA_AGENT,
                session_id=session_id,
                run_id=row.document.run_id,
                task_id=row.document.task_id,
                run_phase=row.document.run_phase,
                generation=0,  # the one that every round has
                packet_id=new_packet_id(),
                metadata=metadata,
            )
            answer = await answer_to(pool, await emitter.emit(draft, None, 0), bus.user)
            if answer.reason is not None:
                raise InputUnusable(f"the log takes no record of this compression, so there is none: {answer.reason}")

    return tell


# A conversation at the terminal, or line by line through a pipe.


@dataclass(frozen=True, slots=True)
class ChatForm:
    """The options that the user gave. `session_id` None = a new conversation."""

    agent: str | None
    session_id: str | None
    user: str


async def run_chat(form: ChatForm) -> None:
    """Talk until /quit or the end of the input."""
    agent, screen = chat_agent(form.agent), make_screen()
    session_id = form.session_id or str(new_packet_id())
    async with (
        open_memory(form.user) as memory,
        running_tasks(agent, memory) as tasks,
        audited_compressions(agent, session_id, memory.pool) as on_compression,
    ):
        dialogue = Dialogue(agent, session_id, memory.store, tasks=tasks, on_compression=on_compression)
        screen.begin(agent.agent_id, session_id, await dialogue.begin(), is_kept=memory.pool is not None)
        while (line := await screen.read()) is not None:
            if line.strip() == COMMANDS["quit"].usage:
                break
            if line.strip():
                await _answer(dialogue, screen, line.strip())
        screen.end(session_id, is_kept=memory.pool is not None)


async def _answer(dialogue: Dialogue, screen: Screen, line: str) -> None:
    """Answer a line; refusals are shown, and the conversation goes on."""
    try:
        if line.startswith("/"):
            command, words = parse_command(line)
            screen.show_result(line, await command.run(dialogue, words), await dialogue.props())
            return
        with screen.thinking():
            output = await dialogue.say(line)
        screen.show_answer(line, output)
    except ApcError as refused:
        screen.show_refusal(line, refused)

"""The mind of an agent: memory, tools and tasks, its situation, context windows, language models.

It stands above the SDK, `apc_agents`, which knows it by the ports of `apc_agents.ports` and finds it by its name. The
functions here are what it finds, `apc_agents.ports.Mind`; each imports what it gives when it is called.
"""

from collections.abc import Awaitable, Callable, Collection

import asyncpg

from apc_agents.emitter import Emitter
from apc_agents.errors import AgentError
from apc_agents.ports import BaseMemoryStore, Connection, NewMessages, SnapshotSource, Tools
from apc_agents.task_port import TaskStore
from apc_bus.settings import RelevanceSettings, WorkerSettings
from apc_contracts.agent import AgentContext, ContextMessage, SecurityLevel


def memory_store(pool: asyncpg.Pool | None = None) -> BaseMemoryStore:
    """Return the memory of a worker: in Postgres, patient with a database that is away, or in this process."""
    if pool is None:
        from apc_minds.memory.in_memory import InMemoryMemoryStore

        return InMemoryMemoryStore()
    from apc_minds.memory.postgres import PostgresMemoryStore

    return PostgresMemoryStore(pool, is_patient=True, sees_others=False)


def task_store(agent_id: str, pool: asyncpg.Pool | None = None) -> TaskStore:
    """Return where the tasks of an agent are kept: in Postgres, or in this process."""
    if pool is None:
        from apc_minds.tasks.in_memory import InMemoryTaskStore

        return InMemoryTaskStore()
    from apc_minds.tasks.postgres import PostgresTaskStore

    return PostgresTaskStore(pool, agent_id)


def task_runner(
    agent_id: str,
    tools: Tools,
    tasks: TaskStore,
    emitter: Emitter,
    security_level: SecurityLevel,
    settings: WorkerSettings,
) -> Callable[[], Awaitable[None]]:
    """Return what runs the tasks of an agent until it is cancelled. Raises AgentError for tools of another mind."""
    from apc_minds.tasks.runner import TaskRunner, announce_with
    from apc_minds.tools import ToolRegistry

    if not isinstance(tools, ToolRegistry):
        raise AgentError(f"the tools of {agent_id} are {type(tools).__name__}: give a ToolRegistry of apc_minds.tools")
    runner = TaskRunner(
        agent_id,
        tools,
        tasks,
        announce_with(emitter, agent_id),
        security_level=security_level,
        concurrency=settings.task_concurrency,
        lease=settings.task_lease,
        poll=settings.task_poll,
    )
    return runner.run


def snapshots(memory: BaseMemoryStore) -> SnapshotSource:
    """Return what builds context objects from a memory."""
    from apc_minds.situation import ContextAssembler

    return ContextAssembler(memory)


def relevance(
    message: ContextMessage,
    context: AgentContext,
    settings: RelevanceSettings,
    *,
    language: str,
    actions: Collection[str],
) -> float:
    """Return the Symbolic Resonance Score of a message, 0..1."""
    from apc_minds.situation import resonance

    return resonance(message, context, settings, language=language, actions=actions).score(settings)


async def add_messages(connection: Connection, owner: str, messages: NewMessages) -> None:
    """Add messages to their conversation in the transaction of the connection.

    Raises ConversationInvalid, ValueInvalid, MemoryUnavailable.
    """
    from apc_minds.memory.rows import append_messages

    await append_messages(connection, owner, messages)

"""The tasks that a chat starts: stored with the conversation, and run by this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from apc_agents.llm import LLMAgent
from apc_agents.tasks import MemoryTaskStore, PostgresTaskStore, TaskEvent, TaskRunner, TaskStore
from apc_bus.concurrency import cancelled
from apc_bus.settings import WorkerSettings
from apc_bus.supervision import Health, keep_running
from apc_console.chat.conversation_store import ChatMemory


@asynccontextmanager
async def running_tasks(agent: LLMAgent, memory: ChatMemory) -> AsyncIterator[TaskStore]:
    """Yield the store of the agent's tasks, which run while it is open.

    The next process continues what is left.
    """
    store: TaskStore = MemoryTaskStore() if memory.pool is None else PostgresTaskStore(memory.pool)
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

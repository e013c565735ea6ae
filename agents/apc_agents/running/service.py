"""Runs a worker as a process: connects with patience, drains at SIGTERM."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import asyncpg
import structlog

from apc_agents.agent import Agent
from apc_agents.effects import EffectStore, InMemoryEffectStore, PostgresEffectStore
from apc_agents.errors import AgentError
from apc_agents.handling.state import InMemoryStateStore, PostgresStateStore, StateStore
from apc_agents.memory.in_memory import InMemoryMemoryStore
from apc_agents.memory.postgres import PostgresMemoryStore
from apc_agents.memory.store import BaseMemoryStore
from apc_agents.running.worker import Worker
from apc_agents.scheduling import InMemoryScheduleStore, PostgresScheduleStore, ScheduleStore
from apc_agents.tasks.in_memory import InMemoryTaskStore
from apc_agents.tasks.postgres import PostgresTaskStore
from apc_agents.tasks.store import TaskStore
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.chaos import disturb
from apc_bus.concurrency import Backoff, unasked_cancel_fails
from apc_bus.errors import ArtifactError, BusUnavailable, DatabaseUnavailable, QueueMissing, SubscriptionLost
from apc_bus.settings import BusSettings, WorkerSettings

FIRST_WAIT = 0.5
LONGEST_WAIT = 5.0
"""Seconds between two attempts to start."""

ResultT = TypeVar("ResultT")
WorkerListener = Callable[[Worker], None]

_log = structlog.get_logger("apc_agents")


async def run_worker(
    agent: Agent,
    settings: WorkerSettings | None = None,
    *,
    bus_settings: BusSettings | None = None,
    stop: asyncio.Event | None = None,
    on_worker: WorkerListener | None = None,
) -> None:
    """Run an agent over RabbitMQ until SIGTERM or SIGINT (or `stop`), then drain.

    While the broker, the database or the agent's queues are not there, it says so and tries again with back-off;
    a connection that is lost while it runs is made again.

    ```python
    from apc_bus import BusSettings

    try:
        await run_worker(desk, bus_settings=BusSettings(amqp_url=None))
    except AgentError as error:
        assert "set APC_AMQP_URL" in str(error)
    ```

    Args:
        agent: what to run.
        settings: default those of the environment (docs/reference/settings.md).
        bus_settings: default those of the environment.
        stop: set to end it, as SIGTERM does.
        on_worker: told of each worker that is made.

    Raises:
        AgentError: no broker is configured.
        Exception: whatever on_start raised.
    """
    settings, bus_settings = settings or WorkerSettings(), bus_settings or BusSettings()
    if not bus_settings.amqp_nodes:
        raise AgentError("a worker process needs a broker: set APC_AMQP_URL, or run the agent inside `apc up`")
    stop = stop or asyncio.Event()
    with _stopped_by_signals(stop):
        await _until(stop, lambda: _serve(agent, settings, bus_settings, stop, on_worker))


async def _serve(
    agent: Agent,
    settings: WorkerSettings,
    bus_settings: BusSettings,
    stop: asyncio.Event,
    on_worker: WorkerListener | None,
) -> None:
    from apc_bus.rabbit import connect_rabbit  # late: half a second of imports that tests in process never need

    artifacts = _artifacts(bus_settings)
    async with _stores(settings, agent.agent_id) as (pool, states, tasks, effects, memory, schedules):
        connected = await connect_rabbit(bus_settings, purpose=f"worker {agent.agent_id}", shards=settings.shards)
        bus = disturb(connected, agent.agent_id, bus_settings)
        try:
            worker = Worker(
                agent,
                bus,
                settings=settings,
                states=states,
                tasks=tasks,
                effects=effects,
                memory=memory,
                schedules=schedules,
                artifacts=artifacts,
                database=pool,
            )
            if on_worker is not None:
                on_worker(worker)
            await worker.run(stop)
        except QueueMissing as error:
            raise QueueMissing(f"{error}; if the agent is not registered: {registration_line(agent)}") from error
        finally:
            await bus.close()


def _artifacts(settings: BusSettings) -> ArtifactStore | None:
    """Return the artifact store; None when it would be in a data folder that cannot be written to."""
    try:
        return open_artifacts(settings)
    except ArtifactError as error:
        if settings.artifacts_url is not None:
            raise
        _log.warning("artifacts_not_kept", reason=str(error))
        return None


def registration_line(agent: Agent) -> str:
    """Return the command that registers an agent as its code declares it."""
    handles = ",".join(sorted(agent.handles))
    handling = f" --handles {handles}" if handles else ""
    return f"`apc agent add {agent.agent_id} --role {agent.role} --swarm {agent.swarm}{handling}`"


async def _until(stop: asyncio.Event, serve: Callable[[], Awaitable[None]]) -> None:
    backoff = Backoff(FIRST_WAIT, LONGEST_WAIT, stop)
    while not stop.is_set():
        try:
            with unasked_cancel_fails():
                return await serve()
        except (BusUnavailable, DatabaseUnavailable, QueueMissing, SubscriptionLost) as error:
            _log.warning("worker_waits", reason=str(error), error=type(error).__name__)
        await backoff.wait()


@asynccontextmanager
async def _stores(
    settings: WorkerSettings, agent_id: str
) -> AsyncIterator[tuple[asyncpg.Pool | None, StateStore, TaskStore, EffectStore, BaseMemoryStore, ScheduleStore]]:
    url = settings.url
    if url is None:
        reason = "APC_DATABASE_URL is not set: ctx.state, ctx.once, tasks, memory and schedules end with this process"
        _log.warning("state_not_kept", reason=reason)
        memory = InMemoryMemoryStore()
        yield (
            None,
            InMemoryStateStore(memory),
            InMemoryTaskStore(),
            InMemoryEffectStore(),
            memory,
            InMemoryScheduleStore(),
        )
        return
    from apc_bus.database import open_pool  # late: not needed without a database

    pool = await open_pool(url, max_size=4 + settings.task_concurrency)
    try:
        yield (
            pool,
            PostgresStateStore(pool),
            PostgresTaskStore(pool, agent_id),
            PostgresEffectStore(pool),
            PostgresMemoryStore(pool, is_patient=True, sees_others=False),
            PostgresScheduleStore(pool),
        )
    finally:
        await pool.close()


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

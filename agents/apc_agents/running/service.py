"""Runs a worker as a process: connects with patience, drains at SIGTERM."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import asyncpg

from apc_agents.agent import Agent
from apc_agents.effects import EffectStore, InMemoryEffectStore, PostgresEffectStore
from apc_agents.errors import AgentError
from apc_agents.handling.state import Documents, InMemoryStateStore, PostgresStateStore, StateStore
from apc_agents.ports import BaseMemoryStore, find_mind, require_mind
from apc_agents.running.worker import Worker
from apc_agents.scheduling import InMemoryScheduleStore, PostgresScheduleStore, ScheduleStore
from apc_agents.task_port import TaskStore
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.chaos import disturb
from apc_bus.concurrency import Backoff, unasked_cancel_fails
from apc_bus.errors import ArtifactError, BusUnavailable, DatabaseUnavailable, QueueMissing, SubscriptionLost
from apc_bus.last_resort import LastResort
from apc_bus.settings import BusSettings, WorkerSettings
from apc_bus.telemetry import get_logger

FIRST_WAIT = 0.5
LONGEST_WAIT = 5.0
"""Seconds between two attempts to start."""

ResultT = TypeVar("ResultT")
WorkerListener = Callable[[Worker], None]

_log = get_logger("apc_agents")


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
    stop = stop or asyncio.Event()
    with stopped_by_signals(stop):
        await keep_worker(agent, settings, bus_settings, stop, on_worker=on_worker)


async def keep_worker(
    agent: Agent,
    settings: WorkerSettings,
    bus_settings: BusSettings,
    stop: asyncio.Event,
    *,
    on_worker: WorkerListener | None = None,
    last_resort: LastResort | None = None,
) -> None:
    """Run an agent as `run_worker` does, in a process whose signals are somebody else's, until `stop` is set.

    `last_resort` is that of the process. Raises as `run_worker`.
    """
    if not bus_settings.amqp_nodes:
        raise AgentError("a worker process needs a broker: set APC_AMQP_URL, or run the agent inside `apc up`")
    await keep_serving(stop, lambda: _serve(agent, settings, bus_settings, stop, on_worker, last_resort))


async def _serve(
    agent: Agent,
    settings: WorkerSettings,
    bus_settings: BusSettings,
    stop: asyncio.Event,
    on_worker: WorkerListener | None,
    last_resort: LastResort | None,
) -> None:
    from apc_bus.rabbit import connect_rabbit  # late: half a second of imports that tests in process never need

    artifacts = open_artifact_store(bus_settings)
    async with open_stores(settings, 4 + settings.task_concurrency) as stores:
        connected = await connect_rabbit(bus_settings, purpose=f"worker {agent.agent_id}", shards=settings.shards)
        bus = disturb(connected, agent.agent_id, bus_settings)
        try:
            worker = Worker(
                agent,
                bus,
                settings=settings,
                states=stores.states,
                tasks=stores.tasks_of(agent),
                effects=stores.effects,
                memory=stores.memory,
                schedules=stores.schedules,
                artifacts=artifacts,
                database=stores.pool,
                last_resort=last_resort,
            )
            if on_worker is not None:
                on_worker(worker)
            await worker.run(stop)
        except QueueMissing as error:
            raise QueueMissing(f"{error}; if the agent is not registered: {registration_line(agent)}") from error
        finally:
            await bus.close()


def open_artifact_store(settings: BusSettings) -> ArtifactStore | None:
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


async def keep_serving(stop: asyncio.Event, serve: Callable[[], Awaitable[None]]) -> None:
    """Serve until `stop` is set, again with back-off while broker, database or queues are not there."""
    backoff, told = Backoff(FIRST_WAIT, LONGEST_WAIT, stop), ""
    while not stop.is_set():
        try:
            with unasked_cancel_fails():
                return await serve()
        except (BusUnavailable, DatabaseUnavailable, QueueMissing, SubscriptionLost) as error:
            if told != (told := str(error)):
                _log.warning("worker_waits", reason=str(error), error=type(error).__name__)
        await backoff.wait()


@dataclass(frozen=True, slots=True)
class Stores:
    """Where workers keep what is to outlive them; without a database it ends with the process."""

    pool: asyncpg.Pool | None
    states: StateStore
    effects: EffectStore
    memory: BaseMemoryStore | None
    schedules: ScheduleStore

    def tasks_of(self, agent: Agent) -> TaskStore | None:
        """Return where the tasks of an agent are kept; None for one without tools."""
        return None if agent.tools is None else require_mind("tools").task_store(agent.agent_id, self.pool)


@asynccontextmanager
async def open_stores(settings: WorkerSettings, connections: int) -> AsyncIterator[Stores]:
    """Yield the stores of the settings' database, over a pool of at most so many connections.

    Raises:
        DatabaseUnavailable: it does not answer.
    """
    url, mind = settings.url, find_mind()
    if url is None:
        reason = "APC_DATABASE_URL is not set: ctx.state, ctx.once, tasks, memory and schedules end with this process"
        _log.warning("state_not_kept", reason=reason)
        memory = None if mind is None else mind.memory_store()
        states = InMemoryStateStore(memory if isinstance(memory, Documents) else None)
        yield Stores(None, states, InMemoryEffectStore(), memory, InMemoryScheduleStore())
        return
    from apc_bus.database import open_pool  # late: not needed without a database

    pool = await open_pool(url, max_size=connections)
    try:
        memory = None if mind is None else mind.memory_store(pool)
        yield Stores(pool, PostgresStateStore(pool), PostgresEffectStore(pool), memory, PostgresScheduleStore(pool))
    finally:
        await pool.close()


@contextmanager
def stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set `stop` at SIGTERM and SIGINT meanwhile."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

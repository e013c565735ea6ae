"""The whole system over RabbitMQ and a given Postgres: one process per service and agent, restarted when it dies."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import asyncpg
import structlog

from apc_agents.team import load_agent
from apc_bus.artifacts import ArtifactStore, open_artifacts
from apc_bus.concurrency import first_of
from apc_bus.database import open_pool
from apc_bus.errors import BusError, TaskEnded
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings, PersisterSettings
from apc_bus.topology import agent_queue, gate_queue, log_queue
from apc_client.in_process import migrate_url
from apc_client.registration import (
    addition,
    inboxes_of,
    publish_changes,
    queues_of,
    topology_of,
    wait_until_recorded,
    with_keys,
)
from apc_client.sending import until
from apc_console.commands.topology.definitions import shared_users
from apc_console.connections.broker import apply, broker_user, open_bus
from apc_console.connections.database import PATIENCE
from apc_console.errors import ServiceAway
from apc_console.system.supervisor import ProcessSpec, Supervisor
from apc_contracts.identity.registry import Registration
from apc_log.heads import read_epochs
from apc_log.registry import registered_agents
from apc_persister.evidence.checkpoint import ensure_key

START_LIMIT = timedelta(seconds=30)
"""How long a new gate may take to acquire its shards, and then to log the registrations."""
DEATHS_AT_START = 3
"""How often a service may die at start before it is given up."""
DRAIN_LIMIT = timedelta(seconds=10)
"""How long shutdown waits for what is on its way to the gate, and then to the log writer."""
GATE_STAGE = 1
AGENT_STAGE = 2
SERVICES = (
    ProcessSpec("persister", ("serve", "persister"), stage=0),
    ProcessSpec("orchestrator", ("serve", "orchestrator"), stage=GATE_STAGE),
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """An agent as a process: `module:agent`, and additions to its environment."""

    module: str
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupervisedSystem:
    """A running system; created by `run_supervised`."""

    pool: asyncpg.Pool
    artifacts: ArtifactStore
    supervisor: Supervisor
    settings: BusSettings

    async def run(self, stop: asyncio.Event) -> None:
        """Wait until `stop` is set; processes that die meanwhile are restarted.

        Raises:
            TaskEnded, Exception: what restarts them has ended.
        """
        await first_of(stop.wait(), *self.supervisor.keepers)
        if not stop.is_set():
            raise TaskEnded("a process is not kept running any more: its supervisor has ended")

    async def drain(self) -> None:
        """Stop all processes: agents, gate, log writer, each after its backlog is drained; idempotent."""
        shards = range(self.settings.shards)
        await self.supervisor.drain(AGENT_STAGE)
        await _until_empty(self.settings, [gate_queue(shard) for shard in shards])
        await self.supervisor.drain(GATE_STAGE)
        await _until_empty(self.settings, [log_queue(shard) for shard in shards])
        await self.supervisor.drain()


@asynccontextmanager
async def run_supervised(
    settings: BusSettings,
    database: DatabaseSettings,
    agents: Sequence[AgentProcess],
    *,
    logs: Path | None = None,
) -> AsyncIterator[SupervisedSystem]:
    """Migrate, declare, register, and run everything; leaving the context drains it: agents, gate, log writer.

    Raises:
        BusUnavailable, DatabaseUnavailable, TopologyConflict, AgentNotFound, LogKeyUnusable, AgentKeyUnusable: nothing
            was started.
        ServiceAway: a service refuses to start, which says why, or did not take the registrations in time.
    """
    url = database.url
    assert url is not None, "has_broker has checked it"
    ensure_key(PersisterSettings(data_dir=settings.data_dir))
    described = [load_agent(agent.module).registration(broker_user(settings)) for agent in agents]
    async with AsyncExitStack() as stack:
        await migrate_url(url)
        pool = await open_pool(url, max_size=database.database_pool, wait=PATIENCE)
        stack.push_async_callback(pool.close)
        registrations = await with_keys(pool, described)
        await _declare(settings, pool, registrations)
        epochs = await read_epochs(pool)
        supervisor = await stack.enter_async_context(Supervisor(SERVICES, logs, ConsoleSettings().health_port))
        await _until_held(settings, pool, epochs, supervisor)
        await _register(settings, pool, registrations)
        for agent, registration in zip(agents, registrations, strict=True):
            arguments = ("worker", agent.module)
            supervisor.add(ProcessSpec(registration.agent_id, arguments, AGENT_STAGE, agent.environment))
        await _until_consumed(settings, registrations)
        system = SupervisedSystem(pool, open_artifacts(settings), supervisor, settings)
        stack.push_async_callback(system.drain)
        yield system


async def _until_empty(settings: BusSettings, queues: Sequence[str]) -> None:
    """Wait, up to a limit, until what agents left behind is judged, and what the gate has judged is logged."""
    try:
        async with open_bus(settings) as bus:

            async def are_empty() -> bool:
                return not any([(await bus.depth(queue)).messages for queue in queues])

            await until(are_empty, DRAIN_LIMIT)
    except (TimeoutError, BusError) as error:
        log.warning("drain_incomplete", queues=queues, reason=str(error))


async def _declare(settings: BusSettings, pool: asyncpg.Pool, registrations: Sequence[Registration]) -> None:
    known = {one.agent_id: one for one in (*await registered_agents(pool), *registrations)}
    await apply(topology_of(settings, inboxes_of(known.values())))


async def _until_held(
    settings: BusSettings, pool: asyncpg.Pool, before: Mapping[int, int], supervisor: Supervisor
) -> None:
    """Wait until our gate holds every shard: each then has a new epoch."""

    async def are_held() -> bool:
        for service in SERVICES:
            if supervisor.deaths(service.name) >= DEATHS_AT_START:
                raise ServiceAway(f"the {service.name} does not start: {supervisor.last_words(service.name)}")
        epochs = await read_epochs(pool)
        return all(epochs.get(shard, 0) > before.get(shard, 0) for shard in range(settings.shards))

    try:
        await until(are_held, START_LIMIT)
    except TimeoutError as error:
        raise ServiceAway(
            f"the gate did not take its shards within {START_LIMIT.total_seconds():g} s: another one may hold "
            "them, or its log says why"
        ) from error


async def _until_consumed(settings: BusSettings, registrations: Sequence[Registration]) -> None:
    """Wait until every agent's process consumes; one that cannot start is reported, and does not stop the others."""
    waiting = [registration.agent_id for registration in registrations]
    async with open_bus(settings) as bus:

        async def are_consumed() -> bool:
            for agent_id in list(waiting):
                if (await bus.depth(agent_queue(agent_id, urgent=False))).consumers:
                    waiting.remove(agent_id)
            return not waiting

        try:
            await until(are_consumed, START_LIMIT)
        except TimeoutError:
            log.error("agents_not_ready", agents=waiting, after_s=START_LIMIT.total_seconds())


async def _register(settings: BusSettings, pool: asyncpg.Pool, registrations: Sequence[Registration]) -> None:
    changes = [addition(registration) for registration in registrations]
    for sentence in shared_users(topology_of(settings, list(map(queues_of, registrations)))):
        log.warning("broker_user_shared", reason=sentence)
    async with open_bus(settings) as bus:
        await publish_changes(bus, changes, settings.shards)
    await wait_until_recorded(pool, changes, settings.shards, START_LIMIT)

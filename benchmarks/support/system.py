"""The bus under measurement: orchestrator and persister as separate processes, agents registered by an operator."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import asyncpg
from tests.support.waiting import until

from apc_agents import Agent, Worker, WorkerSettings
from apc_bus.database import open_pool
from apc_bus.port import Bus, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import build_topology
from apc_client.registration import addition, publish_changes, queues_of, wait_until_recorded
from apc_contracts import seal
from apc_contracts.payloads.session_signals import SwarmSpec
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_log.heads import read_ends
from apc_persister.follower import PROJECTIONS
from benchmarks.support import agents, packets
from benchmarks.support.processes import Service, running
from benchmarks.support.servers import Servers

PATIENCE = timedelta(seconds=60)
POLL_SECONDS = PersisterSettings().commit_interval.total_seconds()
"""Between two questions to the log, which is written no more often than that. Each costs this process and Postgres
0.2 ms, which count as the pipeline's: the more of them, the more a packet costs on a machine that is slow just then."""
WINDOW = 900
"""Packets in flight: the gate refuses beyond 1,000 open deliveries of one recipient."""
CHUNK = 100
"""Packets in one call of the sender."""
PROGRESS = """
SELECT count(*) AS sessions, sum(coalesce((document->'spent'->>'packets')::numeric, 0))::integer AS admitted,
       sum(open_deliveries)::integer AS open_deliveries
FROM apc_log.sessions WHERE session_id = ANY($1)
"""
ROWS = """
SELECT count(*) FILTER (WHERE to_state = 'ROUTED') AS routed, count(*) FILTER (WHERE to_state = 'ARCHIVED') AS archived,
       count(*) AS hops
FROM apc_log.packet_events WHERE session_id = $1 AND packet_id = ANY($2::uuid[])
"""


@dataclass(frozen=True, slots=True)
class System:
    """A running bus; `bus` and `pool` are the benchmark's own connections."""

    bus: Bus
    pool: asyncpg.Pool
    environment: dict[str, str]
    services: dict[str, Service]
    shards: int = 1

    @asynccontextmanager
    async def worker(self, agent: str, *, module: str = "agents", **settings: str) -> AsyncIterator[Service]:
        """Start an agent of a module of the benchmarks in a separate process, ready."""
        arguments = ("-m", "apc_cli", "worker", f"benchmarks.support.{module}:{agent}")
        async with running(agent, *arguments, environment=self.environment | settings) as service:
            await service.said("worker_started")
            yield service

    @asynccontextmanager
    async def local_worker(self, agent: Agent) -> AsyncIterator[Worker]:
        """Start an agent in this process, ready."""
        async with local_worker(agent, self.bus) as worker:
            yield worker

    async def open_session(self, session_id: str, members: Sequence[Agent]) -> None:
        """Open a session; returns when it is logged and every SYNC was handled. `source` must run already."""
        await open_session(self.bus, self.pool, session_id, members)


@asynccontextmanager
async def local_worker(agent: Agent, bus: Bus) -> AsyncIterator[Worker]:
    """Start an agent in this process, over a given bus, ready."""
    worker = Worker(agent, bus, settings=WorkerSettings(database_url=None))
    stop = asyncio.Event()
    task = asyncio.create_task(worker.run(stop))
    ready = asyncio.create_task(worker.ready.wait())
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield worker
    finally:
        stop.set()
        ready.cancel()
        await task


async def open_session(bus: Bus, pool: asyncpg.Pool, session_id: str, members: Sequence[Agent]) -> None:
    """Open a session; returns when it is logged and every SYNC was handled."""
    swarm = SwarmSpec(swarm_id=agents.SWARM, agents=tuple(member.agent_id for member in members))
    start = packets.start_packet(session_id, agents.source.actor, [swarm])
    await bus.publish(packets.publication(seal(start), bus.user))
    await until_applied(pool, [session_id], 0)


async def until_applied(pool: asyncpg.Pool, session_ids: Sequence[str], count: int) -> None:
    """Return when `count` packets of agents are in the log and no delivery of these sessions is open."""

    async def are_applied() -> bool:
        row = await pool.fetchrow(PROGRESS, session_ids)
        assert row is not None
        are_open = row["sessions"] == len(session_ids)
        return are_open and row["admitted"] >= count and not row["open_deliveries"]

    await until(are_applied, PATIENCE.total_seconds(), pause_seconds=POLL_SECONDS)


async def until_followed(pool: asyncpg.Pool) -> None:
    """Return when every projection has taken what is in the log now, so that its CPU time can be read."""
    ends = await read_ends(pool)

    async def are_taken() -> bool:
        rows = await pool.fetch("SELECT shard, min(seq) AS seq, count(*) AS known FROM apc_log.followed GROUP BY shard")
        taken = {row["shard"]: row["seq"] for row in rows if row["known"] == len(PROJECTIONS)}
        return all(taken.get(shard, 0) >= end for shard, end in ends.items())

    await until(are_taken, PATIENCE.total_seconds(), pause_seconds=2 * POLL_SECONDS)


@asynccontextmanager
async def start_system(servers: Servers, shards: int = 1) -> AsyncIterator[System]:
    """Start the services over a fresh virtual host and database, with every agent of the benchmarks registered."""
    amqp_url, database_url = servers.fresh_vhost(), await servers.fresh_database()
    environment = {
        "APC_AMQP_URL": amqp_url,
        "APC_DATABASE_URL": database_url,
        "APC_DATA_DIR": "build/bench",
        "APC_LOG_KEY_FILE": os.environ["APC_LOG_KEY_FILE"],
        "APC_SHARDS": str(shards),
        "APC_DATABASE_POOL": str(max(10, shards + 2)),  # the log writer needs one a shard, and one more
    }
    everyone = [agents.source, agents.sink, agents.echo, agents.PingAgent(), *agents.crowd()]
    async with AsyncExitStack() as stack:
        bus = await connect_rabbit(BusSettings(amqp_url=amqp_url), purpose="benchmark", shards=shards)
        stack.push_async_callback(bus.close)
        registrations = [agent.registration(bus.user) for agent in everyone]
        await apply_rabbit(amqp_url, build_topology(shards, [queues_of(one) for one in registrations]))
        pool = await open_pool(database_url, max_size=2)
        stack.push_async_callback(pool.close)
        services = {}
        # The orchestrator has its own broker user, as in every deployment: workers trust what comes from it.
        gate = {"APC_AMQP_URL": servers.login(amqp_url, ORCHESTRATOR), "APC_OPERATOR_USER": bus.user}
        for name, own in (("persister", {}), ("orchestrator", gate)):
            service = running(name, "-m", "apc_cli", "serve", name, environment=environment | own)
            services[name] = await stack.enter_async_context(service)
        changes = [addition(one) for one in registrations]
        await publish_changes(bus, changes, shards)
        await wait_until_recorded(pool, changes, shards, PATIENCE)
        yield System(bus, pool, environment, services, shards)


@dataclass(slots=True)
class Load:
    """Sends packets into sessions, never more than WINDOW that are not yet applied and logged."""

    bus: Bus
    pool: asyncpg.Pool
    session_ids: Sequence[str]
    recipients: int = 1
    """Of each packet."""
    sent: int = 0

    async def send(self, load: Sequence[Publication]) -> None:
        """Send everything; returns when the last packet is confirmed. Raises BusError."""
        position = 0
        while position < len(load):
            chunk = load[position : position + CHUNK]
            await until(partial(self._has_room, len(chunk)), PATIENCE.total_seconds(), pause_seconds=POLL_SECONDS)
            for error in await self.bus.publish_all(chunk):
                if error is not None:
                    raise error
            position += len(chunk)
            self.sent += len(chunk)

    async def _has_room(self, count: int) -> bool:
        row = await self.pool.fetchrow(PROGRESS, self.session_ids)
        assert row is not None
        done = row["admitted"] - row["open_deliveries"] / self.recipients
        return bool(self.sent - done + count <= WINDOW)

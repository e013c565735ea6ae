"""Gates and log writers in this process, over a real RabbitMQ and a real Postgres."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pydantic import SecretStr
from tests.support.log import replay_everything
from tests.support.traffic import ScriptedAgents, make_idea, make_packet, make_start, until

from apc_bus.artifacts import ArtifactStore
from apc_bus.database import open_pool
from apc_bus.port import Delivery
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings, PersisterSettings
from apc_bus.topology import agent_queue, build_topology
from apc_contracts import Packet, parse_packet
from apc_log.placement import LogDatabases
from apc_orchestrator import Orchestrator, OrchestratorSettings
from apc_persister.service import Persister

RECIPIENT_STATE = """
SELECT state FROM apc_log.packet_recipient_state WHERE packet_id = $1 AND recipient = $2
"""

SIGNALLED = """
SELECT recipients FROM apc_log.agent_packets WHERE packet_type = 'SIGNAL' AND sender_agent_id = 'orchestrator'
"""


@dataclass
class Running:
    """A service in a task of this process, with its own connections."""

    bus: RabbitBus
    stop: asyncio.Event
    task: asyncio.Task[None]


@dataclass
class House:
    """Broker, database, artifacts, and the scripted agents who live there."""

    settings: BusSettings
    pool: asyncpg.Pool
    artifacts: ArtifactStore
    agents: ScriptedAgents
    shards: int = 1
    opening: Packet = field(default_factory=make_start)
    databases: LogDatabases | None = None
    """Home, of which `pool` is, and others; None = there is only that one."""

    async def connect(self, purpose: str) -> RabbitBus:
        """One more bus; the caller closes it."""
        return await connect_rabbit(self.settings, purpose=purpose)

    @asynccontextmanager
    async def gate(self, **settings: Any) -> AsyncIterator[tuple[Orchestrator, Running]]:
        """A running orchestrator; leaving stops it cleanly."""
        bus = await self.connect("orchestrator")
        own = OrchestratorSettings(shards=self.shards, **settings)
        orchestrator = Orchestrator(own, bus, self.pool, self.artifacts, databases=self.databases)
        async with _running(bus, orchestrator.run) as running:
            yield orchestrator, running

    @asynccontextmanager
    async def persister(self, **settings: Any) -> AsyncIterator[Running]:
        """A running persister; leaving stops it cleanly."""
        bus = await self.connect("persister")
        own = PersisterSettings(shards=self.shards, **settings)
        persister = Persister(own, bus, self.pool, databases=self.databases)
        async with _running(bus, persister.run) as running:
            yield running

    async def open_session(self) -> None:
        """Register the cast, START the session, and have everybody handle its SIGNAL."""
        await self.agents.register()
        await self.agents.publish(self.opening)
        await until(self.is_in("SESSION_OPEN"))
        for recipient in await self.pool.fetchval(SIGNALLED):
            (signal,) = await self.agents.receive(recipient, urgent=True)
            await self.agents.report(recipient, [UUID(signal.message.message_id)])
        await until(self.has_nothing_open)

    async def dead_letter(self, *recipients: str, **fields: Any) -> Packet:
        """Return an IDEA that its recipients have given to the dead-letter exchange."""
        sent = make_packet("red-1", make_idea(), recipients, parent=self.opening, **fields)
        await self.agents.publish(sent)
        for recipient in recipients:
            async with self.agents.bus.subscribe(agent_queue(recipient, urgent=False)) as inbox:
                (delivery,) = await inbox.receive()
                await inbox.nack(delivery, requeue=False)
                await until(self.has_come_to("DEAD_LETTERED", sent.packet_id, recipient))
        return sent

    async def has_nothing_open(self) -> bool:
        """A condition: every delivery has ended."""
        return bool(await self.pool.fetchval("SELECT sum(open_deliveries) FROM apc_log.sessions") == 0)

    def is_in(self, state: str) -> Callable[[], Awaitable[bool]]:
        """Return a condition: the session is in this state."""

        async def holds() -> bool:
            return bool(await self.pool.fetchval("SELECT state FROM apc_log.sessions") == state)

        return holds

    def is_logged(self, *packet_ids: UUID) -> Callable[[], Awaitable[bool]]:
        """Return a condition: the log has a row of each of these packets."""
        query = "SELECT count(*) FROM apc_log.agent_packets WHERE packet_id = ANY($1)"

        async def holds() -> bool:
            return bool(await self.pool.fetchval(query, packet_ids) == len(packet_ids))

        return holds

    def has_come_to(self, state: str, packet_id: UUID, recipient: str) -> Callable[[], Awaitable[bool]]:
        """Return a condition: the packet is in this state for this recipient."""

        async def holds() -> bool:
            return bool(await self.pool.fetchval(RECIPIENT_STATE, packet_id, recipient) == state)

        return holds

    async def count(self, table: str, condition: str = "true") -> int:
        """Rows of a table of the log."""
        return int(await self.pool.fetchval(f"SELECT count(*) FROM apc_log.{table} WHERE {condition}"))


@asynccontextmanager
async def _running(bus: RabbitBus, run: Callable[[asyncio.Event], Awaitable[None]]) -> AsyncIterator[Running]:
    stop = asyncio.Event()

    async def running() -> None:
        await run(stop)

    task = asyncio.create_task(running())
    try:
        yield Running(bus, stop, task)
    finally:
        stop.set()
        await task
        await bus.close()


@pytest.fixture
def shards() -> int:
    """Shards of the house; a module may have more."""
    return 1


@pytest.fixture
async def house(amqp_vhost_url: str, postgres_url: str, tmp_path: Path, shards: int) -> AsyncIterator[House]:
    """A fresh virtual host with the topology of the cast, a fresh database, an artifact store."""
    settings = BusSettings(amqp_url=SecretStr(amqp_vhost_url))
    async with AsyncExitStack() as resources:
        pool = await open_pool(postgres_url, max_size=8)
        resources.push_async_callback(pool.close)
        bus = await connect_rabbit(settings, purpose="agents")
        resources.push_async_callback(bus.close)
        agents = ScriptedAgents(bus, shards=shards)
        await apply_rabbit(amqp_vhost_url, build_topology(shards, agents.queues))
        yield House(settings, pool, ArtifactStore.open(tmp_path / "artifacts"), agents, shards)
        await replay_everything(pool)


@pytest.fixture
async def running(house: House) -> AsyncIterator[House]:
    """A house with an open session."""
    async with house.persister(), house.gate():
        await house.open_session()
        yield house


@pytest.fixture
def ids() -> Callable[[list[Delivery]], list[UUID]]:
    """The packets that deliveries carry."""
    return lambda deliveries: [parse_packet(delivery.message.body).packet_id for delivery in deliveries]

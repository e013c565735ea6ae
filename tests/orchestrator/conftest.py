"""A gate and a persister at work on a real Postgres, with agents that are played by hand."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID, uuid4

import asyncpg
import pytest
from tests.support.log import replay_everything
from tests.support.traffic.packets import AGENTS, SESSION, make_packet, make_start
from tests.support.waiting import until

from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Bus, Delivery, Message, Publication
from apc_bus.settings import PersisterSettings
from apc_bus.topology import INGRESS, RECEIPTS, AgentQueues, agent_queue, build_topology, gate_queue, log_queue
from apc_contracts import (
    IdeaPayload,
    Packet,
    SignalPayload,
    TaskIrPayload,
    new_packet_id,
    parse_packet,
)
from apc_contracts.identity.registry import ANY_SCHEMA
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.payloads.by_type import ExpectedImpact
from apc_contracts.payloads.task_ir import IrConstraint, IrHeader
from apc_contracts.vocabulary import (
    PROTOCOL_VERSIONS,
    PacketType,
    Signal,
)
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, Usage, encode_receipts
from apc_log.queries.search import read_lag
from apc_orchestrator import Orchestrator, OrchestratorSettings
from apc_persister.follower import PROJECTIONS
from apc_persister.service import Persister
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.sessions import compare_sessions

HANDLED = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)


@dataclass
class House:
    """Broker, database and services of one test."""

    broker: InMemoryBroker
    pool: asyncpg.Pool
    artifacts: ArtifactStore
    clients: dict[str, Bus] = field(default_factory=dict)
    opening: Packet | None = None
    """START of the session that `open` has begun."""

    def client(self, user: str) -> Bus:
        """Return the bus of a broker user."""
        if user not in self.clients:
            self.clients[user] = self.broker.connect(user)
        return self.clients[user]

    @asynccontextmanager
    async def gate(self, **settings: Any) -> AsyncIterator[Orchestrator]:
        """A running orchestrator; leaving stops it cleanly."""
        bus = self.broker.connect("orchestrator")
        orchestrator = Orchestrator(
            OrchestratorSettings(operator_user="operator", **settings), bus, self.pool, self.artifacts
        )
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(orchestrator.run(stop))
            yield orchestrator
            stop.set()
        await bus.close()

    @asynccontextmanager
    async def persister(self) -> AsyncIterator[Persister]:
        """A running persister."""
        bus = self.broker.connect("persister")
        persister = Persister(PersisterSettings(), bus, self.pool)
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(persister.run(stop))
            yield persister
            stop.set()
        await bus.close()

    async def register(self, agents: Mapping[str, tuple[str, tuple[str, ...]]] | None = None) -> None:
        """Register agents as the operator does, and wait until the log has it."""
        agents = AGENTS if agents is None else agents
        for agent_id, (swarm, rights) in agents.items():
            change = AgentAdded(
                change_id=uuid4(),
                agent_id=agent_id,
                broker_user=f"agent.{agent_id}",
                role="role",
                swarm_id=swarm,
                rights=rights,
                handles=tuple(PacketType),
                schemas=(ANY_SCHEMA,),
                speaks=PROTOCOL_VERSIONS,
            )
            message = Message(
                encode_registry_change(change),
                str(change.change_id),
                type=headers.TYPE_REGISTRY,
                user_id="operator",
            )
            await self.client("operator").publish(Publication(RECEIPTS, "0", message))

        async def are_known() -> bool:
            return bool(await self.pool.fetchval("SELECT count(*) FROM apc_log.agents") == len(agents))

        await self.until(are_known)

    async def open(self, opening: Packet) -> Packet:
        """Register the agents and begin a session; what it tells them lies in their inboxes. Returns START."""
        await self.register()
        await self.publish(opening)
        await self.quiet()
        self.opening = opening
        return opening

    async def discover(self, opening: Packet) -> None:
        """Begin a session and bring it to DISCOVERY; every delivery so far has its end."""
        await self.register()
        await self.publish(opening)
        for agent in ("red-1", "blue-1"):
            # Of keys that no other brief has.
            await self.publish(make_packet("librarian", make_brief(), (agent,), parent=opening, keys=(agent,)))
            await self.publish(make_packet(agent, SignalPayload(signal=Signal.SYNC), parent=opening))
        await self.quiet()
        await self.handle_all()

    async def publish(self, packet: Packet, user: str | None = None, **message: Any) -> bytes:
        """Publish a packet to the ingress as its sender's broker user."""
        body = message.pop("body", None) or seal(packet).body
        user = user or f"agent.{packet.sender.agent_id}"
        fields: dict[str, Any] = {
            "message_id": str(packet.packet_id),
            "type": packet.packet_type.value,
            "user_id": user,
        } | message
        await self.client(user).publish(Publication(INGRESS, "0", Message(body, **fields)))
        return bytes(body)

    async def quiet(self) -> None:
        """Everything published has been judged, logged and committed."""
        operator = self.client("operator")

        async def is_quiet() -> bool:
            for queue in (gate_queue(0), log_queue(0)):
                if (await operator.depth(queue)).messages:
                    return False
                found = self.broker.queue(queue)
                if any(consumer._unacked for consumer in found.consumers):
                    return False
            return True

        await self.until(is_quiet)
        await self.until(is_quiet)

    async def followed(self) -> None:
        """What is quiet is in the projections, too, that the persister fills after commit."""

        async def is_followed() -> bool:
            return not await read_lag(self.pool, *(one.name for one in PROJECTIONS))

        await self.until(is_followed)

    async def read(self, agent: str) -> list[Delivery]:
        """Take everything out of an agent's queues."""
        found: list[Delivery] = []
        for urgent in (True, False):
            queue = agent_queue(agent, urgent)
            count = (await self.client("operator").depth(queue)).messages
            if not count:
                continue
            async with self.client(f"agent.{agent}").subscribe(queue) as inbox:
                while count > 0:
                    batch = await inbox.receive()
                    for delivery in batch:
                        await inbox.ack(delivery)
                    found += batch
                    count -= len(batch)
        return found

    async def handle(self, agent: str, *kinds: ReceiptKind) -> list[Packet]:
        """Take everything out of an agent's queues and report it as handled."""
        packets = []
        for delivery in await self.read(agent):
            packet = parse_packet(delivery.message.body)
            packets.append(packet)
            if packet.packet_type is not PacketType.NACK:
                attempt = delivery.message.headers[headers.ATTEMPT]
                await self.report(agent, packet.packet_id, *(kinds or HANDLED), attempt=attempt)
        return packets

    async def handle_all(self) -> None:
        """Report everything in every inbox as handled."""
        for agent in AGENTS:
            await self.handle(agent)
        await self.quiet()

    async def nacks(self, agent: str) -> list[Any]:
        """Take everything out of an agent's queues; the NACKs of it."""
        found: list[Any] = [parse_packet(delivery.message.body) for delivery in await self.read(agent)]
        return [packet for packet in found if packet.packet_type is PacketType.NACK]

    async def report(
        self,
        agent: str,
        packet_id: UUID,
        *kinds: ReceiptKind | str,
        attempt: Any = 1,
        user: str | None = None,
        usage: Usage | None = None,
        after_ms: int | None = None,
    ) -> None:
        """Send receipts of one delivery."""
        found = [
            Receipt(
                packet_id=packet_id,
                session_id=SESSION,
                recipient=agent,
                kind=ReceiptKind(kind),
                attempt=attempt,
                usage=usage,
                at=datetime.now(UTC),
                after_ms=after_ms,
            )
            for kind in kinds
        ]
        user = user or f"agent.{agent}"
        message = Message(encode_receipts(found), str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=user)
        await self.client(user).publish(Publication(RECEIPTS, "0", message))

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
        """Wait until the condition holds. Raises TimeoutError."""
        await until(condition, seconds, pause_seconds=0.005)

    async def state(self) -> str:
        """Return the session's state in the projection."""
        return str(await self.pool.fetchval("SELECT state FROM apc_log.sessions WHERE session_id = $1", SESSION))

    async def state_of(self, packet: Packet) -> str | None:
        """Return the state of a packet's lifecycle in the log; None when the log does not have it."""
        statement = "SELECT state FROM apc_log.packet_state WHERE packet_id = $1"
        return cast(str | None, await self.pool.fetchval(statement, packet.packet_id))


def make_brief() -> TaskIrPayload:
    """Return a research brief of the librarian."""
    header = IrHeader(task_id="task-1", run_id="run-1", swarm_id="library", dialect_id="d", dialect_hash="h")
    constraint = IrConstraint(id="c", constraint_kind="QUALITY", expression="best")
    return TaskIrPayload(ir_header=header, objects=(constraint,))


@pytest.fixture
async def house(postgres_url: str, tmp_path: Path) -> AsyncIterator[House]:
    """The in-process broker with four agents, a fresh database, an artifact store."""
    agents = [AgentQueues(agent_id, swarm, frozenset(PacketType)) for agent_id, (swarm, _) in AGENTS.items()]
    async with AsyncExitStack() as resources:
        pool = await open_pool(postgres_url, max_size=6)
        resources.push_async_callback(pool.close)
        yield House(InMemoryBroker(build_topology(1, agents)), pool, ArtifactStore.open(tmp_path / "artifacts"))
        await replay_everything(pool)
        async with pool.acquire() as connection:
            assert await compare_derived(connection) == []
            assert (await compare_sessions(connection, ())).findings == []


@pytest.fixture
async def running(house: House, start: Callable[..., Packet]) -> AsyncIterator[House]:
    """A house at work, with an open session; the inboxes are empty."""
    async with house.persister(), house.gate():
        await house.open(start())
        await house.handle_all()
        yield house


@pytest.fixture
def packet() -> Callable[..., Packet]:
    return make_packet


@pytest.fixture
def start() -> Callable[..., Packet]:
    return make_start


@pytest.fixture
def idea() -> IdeaPayload:
    return IdeaPayload(
        method_id="m",
        intent="i",
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )

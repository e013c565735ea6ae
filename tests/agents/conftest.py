"""A gate for tests: hands packets to a worker over the in-process bus and collects what it publishes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from apc_agents import Agent, StateStore, Worker, WorkerSettings
from apc_agents.effects import EffectStore
from apc_agents.running.delivery import SessionPosition
from apc_bus import headers
from apc_bus.artifacts import ArtifactStore
from apc_bus.consuming import handle
from apc_bus.in_memory import InMemoryBroker, InMemoryBus
from apc_bus.port import Delivery, HeaderValue, Message, Publication
from apc_bus.topology import (
    DEAD_QUEUE,
    INGRESS,
    INTER_AGENT,
    AgentQueues,
    agent_queue,
    build_topology,
    gate_queue,
    routing_key,
)
from apc_contracts import (
    CONTROL_TYPES,
    ORCHESTRATOR,
    PACKET_TYPES,
    PROTOCOL_VERSION,
    TYPE_OF_PAYLOAD,
    Actor,
    Channel,
    DeliveryMode,
    ExpectedImpact,
    IdeaPayload,
    Packet,
    PacketType,
    Payload,
    Receipt,
    ReceiptKind,
    Recipient,
    Routing,
    RunPhase,
    Trace,
    new_packet_id,
    parse_packet,
    parse_receipts,
    seal,
)
from apc_contracts.wire.receipts import steps_of

PATIENCE = 10.0
_MARKER = "marker"
"""AMQP type of a message that a gate sends to itself behind what the worker has published."""


def _idea(method_id: str = "m-1") -> IdeaPayload:
    """Return a small valid IDEA."""
    return IdeaPayload(
        method_id=method_id,
        intent="try it",
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(),
    )


def _make_packet(
    payload: Payload,
    *,
    to: str = "sentinel-1",
    sender: str = "builder-1",
    session_id: str = "session-1",
    parent: Packet | None = None,
    packet_id: UUID | None = None,
    age: timedelta = timedelta(0),
    ttl: timedelta = timedelta(minutes=1),
    priority: int = 4,
    requires_ack: bool = False,
    vector_clock: dict[str, int] | None = None,
    metadata: dict[str, Any] | None = None,
    version: str = PROTOCOL_VERSION,
) -> Packet:
    """Return a packet as it stands in the log."""
    packet_id = packet_id or new_packet_id()
    packet_type = TYPE_OF_PAYLOAD[type(payload)]
    return PACKET_TYPES[packet_type](
        protocol_version=version,
        packet_id=packet_id,
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=RunPhase.DISCOVERY,
        created_at=datetime.now(UTC) - age,
        sender=Actor(agent_id=sender, role="orchestrator" if sender == ORCHESTRATOR else "builder", swarm_id="s"),
        recipients=(Recipient(agent_id=to),),
        trace=Trace(
            session_id=session_id,
            run_id="run-1",
            task_id="task-1",
            root_packet_id=parent.trace.root_packet_id if parent else packet_id,
            parent_packet_id=parent.packet_id if parent else None,
            generation=0,
            step=0,
            vector_clock=vector_clock,
        ),
        routing=Routing(
            delivery_mode=DeliveryMode.DIRECT,
            priority=priority,
            ttl_ms=round(ttl.total_seconds() * 1000),
            requires_ack=requires_ack,
        ),
        confidence=0.5,
        symbolic_keys=(),
        payload=payload,
        metadata=metadata,
    )


class Gate:
    """The other side of a worker: inboxes to fill, and one shard's queue to read."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        queues = AgentQueues(agent.agent_id, agent.swarm, agent.handles)
        self.broker = InMemoryBroker(build_topology(1, [queues]))
        self.bus = self.broker.connect(ORCHESTRATOR)
        self.messages: list[Message] = []
        self.packets: list[Packet] = []
        self.receipts: list[Receipt] = []
        self.changed = asyncio.Condition()
        self._batch_no = 0
        self._passed: set[str] = set()

    def connect(self) -> InMemoryBus:
        """Return a bus for the worker under test."""
        return self.broker.connect(f"agent.{self.agent.agent_id}")

    async def deliver(
        self,
        packet: Packet,
        moment: SessionPosition | None = None,
        *,
        attempt: int = 1,
        epoch: int = 1,
        batch_no: int | None = None,
        mark: str = "0.0",
        is_refusal: bool = False,
        time_left: timedelta | None = None,
    ) -> None:
        """Publish a delivery as the gate does; its NACKs of refused packets belong to no batch."""
        self._batch_no += 1
        moment = moment or SessionPosition(run_phase=packet.run_phase)
        values: dict[str, HeaderValue] = {
            headers.SHARD: 0,
            headers.EPOCH: epoch,
            headers.BATCH: self._batch_no if batch_no is None else batch_no,
            headers.MARK: mark,
            headers.ATTEMPT: attempt,
            headers.STATE_STEP: moment.step,
            headers.PHASE: moment.run_phase.value,
            headers.ROUND: moment.round,
            headers.GENERATION: moment.generation,
        }
        if moment.contract:
            values[headers.CONTRACT] = moment.contract
        if is_refusal:
            values = {name: values[name] for name in (headers.SHARD, headers.EPOCH, headers.ATTEMPT)}
        await self.send_bytes(packet, seal(packet).body, values, time_left)

    async def send_bytes(
        self, packet: Packet, body: bytes, values: dict[str, HeaderValue], time_left: timedelta | None = None
    ) -> None:
        """Publish any bytes to the worker's inbox that this packet would go to."""
        is_urgent = packet.packet_type in CONTROL_TYPES or packet.routing.priority >= 5
        key = routing_key(packet.packet_type, self.agent.swarm, self.agent.agent_id, is_urgent)
        expiration = None if time_left is None else int(time_left.total_seconds() * 1000)
        message = Message(
            body,
            message_id=str(packet.packet_id),
            type=packet.packet_type.value,
            expiration_ms=expiration,
            headers=values,
        )
        await self.bus.publish(Publication(INTER_AGENT, key, message))

    async def settled(self) -> None:
        """Wait until everything that the worker has published so far is collected."""
        marker = Message(b"", message_id=str(new_packet_id()), type=_MARKER)
        await self.bus.publish(Publication(INGRESS, "0", marker))
        await self.until(lambda: marker.message_id in self._passed)

    async def collect(self, delivery: Delivery) -> None:
        """Take what the worker has published."""
        async with self.changed:
            if delivery.message.type == _MARKER:
                self._passed.add(delivery.message.message_id)
                return self.changed.notify_all()
            self.messages.append(delivery.message)
            for receipt in parse_receipts(str(delivery.message.headers.get(headers.RECEIPTS, "[]")).encode()):
                self.receipts.extend(steps_of(receipt))
            if delivery.message.type == headers.TYPE_RECEIPTS:
                for receipt in parse_receipts(delivery.message.body):
                    self.receipts.extend(steps_of(receipt))
            else:
                packet = parse_packet(delivery.message.body)
                if packet.packet_type is not PacketType.HEARTBEAT:
                    self.packets.append(packet)
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until what was collected fulfils a condition."""
        async with asyncio.timeout(PATIENCE), self.changed:
            await self.changed.wait_for(condition)

    async def ended(self, packet: Packet, kind: ReceiptKind = ReceiptKind.OUTCOME) -> None:
        """Wait for a receipt of this kind for a packet."""
        await self.until(lambda: kind in self.kinds(packet))

    def kinds(self, packet: Packet) -> list[ReceiptKind]:
        """Return the receipts for a packet, in order."""
        return [receipt.kind for receipt in self.receipts if receipt.packet_id == packet.packet_id]

    async def depth(self) -> int:
        """Messages that wait in the worker's two queues."""
        depths = [await self.bus.depth(agent_queue(self.agent.agent_id, urgent)) for urgent in (True, False)]
        return sum(depth.messages for depth in depths)

    async def dead_letters(self) -> int:
        """Messages in the dead queue."""
        return (await self.bus.depth(DEAD_QUEUE)).messages


class Stage:
    """A gate and a worker that runs."""

    def __init__(
        self,
        agent: Agent,
        states: StateStore | None,
        effects: EffectStore | None,
        artifacts: ArtifactStore | None,
        **settings: Any,
    ) -> None:
        self.gate = Gate(agent)
        self.bus = self.gate.connect()
        self.worker = Worker(
            agent, self.bus, settings=WorkerSettings(**settings), states=states, effects=effects, artifacts=artifacts
        )
        self.stop = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    async def start(self) -> Gate:
        """Start the worker; returns the gate once the worker is ready."""
        self.task = asyncio.create_task(self.worker.run(self.stop))
        async with asyncio.timeout(PATIENCE):
            await self.worker.ready.wait()
        return self.gate

    async def end(self) -> None:
        """Stop the worker as SIGTERM does."""
        self.stop.set()
        if self.task is not None:
            await self.task
            self.task = None


StageMaker = Callable[..., Any]


@pytest.fixture
async def make_stage() -> AsyncIterator[StageMaker]:
    """Makes a Stage whose gate collects; the worker is started by the test and stopped in the end."""
    async with AsyncExitStack() as stack:

        async def make(
            agent: Agent,
            states: StateStore | None = None,
            effects: EffectStore | None = None,
            artifacts: ArtifactStore | None = None,
            **settings: Any,
        ) -> Stage:
            stage = Stage(agent, states, effects, artifacts, **settings)
            collecting = handle(stage.gate.bus, gate_queue(0), stage.gate.collect, prefetch=1)
            await stack.enter_async_context(collecting)
            stack.push_async_callback(stage.end)
            return stage

        yield make


MakeIdea = Callable[..., IdeaPayload]
MakePacket = Callable[..., Packet]


@pytest.fixture
def idea() -> MakeIdea:
    """Makes small valid IDEA payloads."""
    return _idea


@pytest.fixture
def make_packet() -> MakePacket:
    """Makes packets as they stand in the log."""
    return _make_packet

"""The worker at its bus: once in effect, in order, acknowledged only after its receipts, drained at the end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, MemoryStateStore, Retry
from apc_agents.session_phase import SessionPosition
from apc_bus import headers
from apc_bus.errors import PublishUnknown, QueueMissing
from apc_bus.memory import MemoryBroker
from apc_bus.port import Publication
from apc_bus.topology import INGRESS, RECEIPTS, agent_queue, build_topology
from apc_contracts import (
    ORCHESTRATOR,
    AckPayload,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    ReceiptKind,
    RunPhase,
    SessionState,
    Signal,
    SignalPayload,
    reply_id,
)

FAST = [ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME]


class Sentinel:
    """An agent that notes what it handles; `gate` holds its handler up, `reply` makes it answer."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid", **options)
        self.handled: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reply = False
        self.agent.on(PacketType.IDEA)(self.review)

    async def review(self, idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload | None:
        self.started.set()
        await self.go_on.wait()
        self.handled.append(idea.payload.method_id)
        return idea.payload if self.reply else None


@pytest.fixture
def sentinel() -> Sentinel:
    return Sentinel()


def sync(step: int, phase: RunPhase, generation: int) -> SignalPayload:
    state = SessionState(
        state="SELECTIVE_TRANSFER",
        run_phase=phase,
        round=0,
        generation=generation,
        step=step,
        paused=False,
        scores={"hybrid": 0.5},
        subjects=(),
    )
    return SignalPayload(signal=Signal.SYNC, session=state)


async def test_the_three_receipts_of_a_fast_handler_travel_in_one_message(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    gate = await (await make_stage(sentinel.agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert gate.kinds(packet) == FAST
    (message,) = [message for message in gate.messages if message.type == headers.TYPE_RECEIPTS]
    assert message.user_id == "agent.sentinel-1"
    receipt = gate.receipts[0]
    assert (receipt.recipient, receipt.session_id, receipt.attempt) == ("sentinel-1", "session-1", 1)


async def test_a_slow_handler_is_announced_before_it_ends(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    gate = await (await make_stage(sentinel.agent)).start()
    sentinel.go_on.clear()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet, ReceiptKind.DELIVERY_ACK)
    assert gate.kinds(packet) == [ReceiptKind.DELIVERY_ACK]
    sentinel.go_on.set()
    await gate.ended(packet)


async def test_emissions_carry_what_the_gate_needs(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    sentinel.reply = True
    gate = await (await make_stage(sentinel.agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    (message,) = [message for message in gate.messages if message.type == "IDEA"]
    assert message.message_id == str(reply_id(packet.packet_id, "sentinel-1", 0))
    assert message.correlation_id == str(packet.packet_id)
    assert message.user_id == "agent.sentinel-1"
    assert message.headers == {headers.CAUSE: str(packet.packet_id), headers.ORDINAL: 0}
    order = [message.type for message in gate.messages if message.type in ("IDEA", headers.TYPE_RECEIPTS)]
    assert order[-1] == headers.TYPE_RECEIPTS, "the outcome follows the emissions"


async def test_a_delivery_is_acknowledged_after_its_receipts_are_confirmed(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    broken = asyncio.Event()
    tried = asyncio.Event()
    publish = stage.bus.publish

    async def unsure(publication: Publication) -> None:
        if publication.exchange == RECEIPTS and not broken.is_set():
            tried.set()
            raise PublishUnknown("no confirm")
        await publish(publication)

    stage.bus.publish = unsure
    packet = make_packet(idea())
    await gate.deliver(packet)
    await tried.wait()
    unacked = gate.broker.queue(agent_queue("sentinel-1", False)).consumers[0]._unacked
    assert len(unacked) == 1
    broken.set()
    await gate.ended(packet)
    await stage.end()
    assert await gate.depth() == 0
    assert sentinel.handled == ["m-1"]


async def test_the_same_delivery_is_handled_once(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    packet, last = make_packet(idea("a")), make_packet(idea("b"))
    sentinel.go_on.clear()
    await gate.deliver(packet)
    await sentinel.started.wait()
    await gate.deliver(packet)
    sentinel.go_on.set()
    await gate.ended(packet)
    await gate.deliver(packet)
    await gate.deliver(last)
    await gate.ended(last)
    assert sentinel.handled == ["a", "b"]
    assert gate.kinds(packet).count(ReceiptKind.OUTCOME) == 1
    await stage.end()
    assert await gate.depth() == 0


async def test_another_attempt_is_handled_again(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    attempts = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        attempts.append(ctx.packet.packet_id)
        if len(attempts) == 1:
            raise Retry(timedelta(seconds=1))
        return idea.payload

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet, attempt=1)
    await gate.ended(packet, ReceiptKind.RETRY)
    await gate.deliver(packet, attempt=2)
    await gate.ended(packet)
    assert len(attempts) == 2
    assert [receipt.attempt for receipt in gate.receipts] == [1, 1, 2, 2, 2]


async def test_a_packet_whose_state_is_saved_is_not_handled_under_another_attempt(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """The gate gave the first attempt up before its handler had ended."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        return idea.payload

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    for attempt in (1, 2):
        await gate.deliver(packet, attempt=attempt)
        await gate.until(lambda attempt=attempt: (attempt, ReceiptKind.OUTCOME) in ends(gate))
    assert len(gate.packets) == 1
    assert [receipt.attempt for receipt in gate.receipts] == [1, 1, 1, 2]


def ends(gate: Any) -> list[tuple[int, ReceiptKind]]:
    return [(receipt.attempt, receipt.kind) for receipt in gate.receipts]


async def test_an_expired_packet_never_starts_a_handler(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    gate = await (await make_stage(sentinel.agent)).start()
    packet = make_packet(idea(), age=timedelta(seconds=2), ttl=timedelta(seconds=1))
    await gate.deliver(packet)
    await gate.ended(packet, ReceiptKind.EXPIRED)
    assert gate.kinds(packet) == [ReceiptKind.EXPIRED]
    assert sentinel.handled == []


async def test_a_batch_that_was_never_committed_is_dropped(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    named = {name: make_packet(idea(name)) for name in ("new", "committed", "fenced", "last")}
    await gate.deliver(named["new"], epoch=2, batch_no=1, mark="1.5")
    await gate.deliver(named["committed"], epoch=1, batch_no=5)
    await gate.deliver(named["fenced"], epoch=1, batch_no=6)
    await gate.deliver(named["last"], epoch=2, batch_no=2, mark="1.5")
    await gate.ended(named["last"])
    assert sentinel.handled == ["new", "committed", "last"]
    assert gate.kinds(named["fenced"]) == []
    await stage.end()
    assert await gate.depth() == 0


async def test_a_nack_of_a_newer_epoch_fences_nothing(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    gate = await (await make_stage(sentinel.agent)).start()
    lost = make_packet(idea())
    nack_id = reply_id(lost.packet_id, ORCHESTRATOR, "nack")
    payload = NackPayload(acked_packet_id=lost.packet_id, ack_status="REJECTED")
    await gate.deliver(
        make_packet(payload, sender=ORCHESTRATOR, parent=lost, packet_id=nack_id), epoch=2, is_refusal=True
    )
    packet = make_packet(idea())
    await gate.deliver(packet, epoch=1, batch_no=7)
    await gate.ended(packet)
    assert sentinel.handled == ["m-1"]


async def test_a_failed_handler_is_dead_lettered_and_its_sender_told(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        raise ZeroDivisionError("no model")

    stage = await make_stage(agent)
    gate = await stage.start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: len(gate.packets) == 1 and bool(gate.kinds(packet)))
    await stage.end()
    (error,) = gate.packets
    assert error.payload.details == {"packet_id": str(packet.packet_id), "attempt": 1}
    assert gate.kinds(packet) == [ReceiptKind.DELIVERY_ACK]
    assert (await gate.dead_letters(), await gate.depth()) == (1, 0)


async def test_bytes_that_are_no_packet_are_dead_lettered(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    packet = make_packet(idea())
    await gate.send_bytes(packet, b"{", {})
    await gate.send_bytes(packet, b"{}", {headers.EPOCH: "many"})
    await gate.deliver(packet)
    await gate.ended(packet)
    await stage.end()
    assert await gate.dead_letters() == 2


async def test_sync_is_known_while_a_handler_runs(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    seen: list[Any] = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        seen.append((ctx.run_phase, ctx.generation, ctx.step, ctx.session_state))
        await ctx.emit(idea.payload, requires_ack=True)
        assert ctx.session_state is not None
        seen.append((ctx.run_phase, ctx.generation, ctx.step, ctx.session_state.scores))
        return idea.payload

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet, SessionPosition(3, RunPhase.DISCOVERY, 0, 10))
    await gate.until(lambda: len(gate.packets) == 1)
    news = make_packet(sync(9, RunPhase.REFINEMENT, 11), sender=ORCHESTRATOR)
    await gate.deliver(news, SessionPosition(9, RunPhase.REFINEMENT, 0, 11))
    old = make_packet(sync(4, RunPhase.DISCOVERY, 10), sender=ORCHESTRATOR)
    await gate.deliver(old, SessionPosition(4, RunPhase.DISCOVERY, 0, 10))
    ack = AckPayload(acked_packet_id=gate.packets[0].packet_id, ack_status="ACCEPTED")
    await gate.deliver(make_packet(ack, parent=gate.packets[0]), SessionPosition(4, RunPhase.DISCOVERY, 0, 10))
    await gate.ended(packet)
    assert seen == [
        (RunPhase.DISCOVERY, 10, 3, None),
        (RunPhase.REFINEMENT, 11, 9, {"hybrid": 0.5}),
    ]
    reply = gate.packets[1]
    assert (reply.run_phase, reply.trace.generation, reply.trace.step) == (RunPhase.REFINEMENT, 11, 9)


async def test_only_the_orchestrator_can_move_the_phase(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    sentinel.reply = True
    gate = await (await make_stage(sentinel.agent)).start()
    lie = make_packet(sync(9, RunPhase.REFINEMENT, 11), sender="builder-1")
    await gate.deliver(lie, SessionPosition(3, RunPhase.DISCOVERY, 0, 2))
    packet = make_packet(idea())
    await gate.deliver(packet, SessionPosition(3, RunPhase.DISCOVERY, 0, 2))
    await gate.ended(packet)
    assert (gate.packets[0].run_phase, gate.packets[0].trace.generation) == (RunPhase.DISCOVERY, 2)


async def test_control_packets_without_handler_are_applied(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket
) -> None:
    gate = await (await make_stage(sentinel.agent)).start()
    packet = make_packet(sync(9, RunPhase.REFINEMENT, 11), sender=ORCHESTRATOR)
    await gate.deliver(packet)
    await gate.ended(packet)
    assert gate.kinds(packet) == FAST


async def test_the_gates_own_nack_reaches_on_refused_and_has_no_receipts(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    refused_packets: list[Any] = []

    @agent.on_refused
    async def refused(nack: Packet[NackPayload], ctx: HandlerContext) -> None:
        refused_packets.append(nack.payload.acked_packet_id)
        await ctx.emit(idea(), to="builder-1", run_phase=RunPhase.DISCOVERY)

    stage = await make_stage(agent)
    gate = await stage.start()
    lost = make_packet(idea())
    nack = make_packet(
        NackPayload(acked_packet_id=lost.packet_id, ack_status="REJECTED", reason="OVERLOADED at $: full"),
        sender=ORCHESTRATOR,
        parent=lost,
        packet_id=reply_id(lost.packet_id, ORCHESTRATOR, "nack"),
    )
    await gate.deliver(nack, epoch=2, is_refusal=True)
    await gate.until(lambda: len(gate.packets) == 1)
    await stage.end()
    assert refused_packets == [lost.packet_id]
    assert gate.receipts == []
    again = gate.packets[0]
    assert again.packet_id.version == 7, "the gate knows no delivery of a NACK that an id could be derived from"
    assert again.trace.root_packet_id == again.packet_id


async def test_what_waits_goes_back_to_the_queue_when_the_worker_stops(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    sentinel.go_on.clear()
    for name in ("running", "waiting", "later"):
        await gate.deliver(make_packet(idea(name)))
    await sentinel.started.wait()
    stage.stop.set()
    for _ in range(100):
        await asyncio.sleep(0)
    assert not stage.worker.ready.is_set()
    sentinel.go_on.set()
    await stage.end()
    assert sentinel.handled == ["running"]
    assert await gate.depth() == 2


async def test_a_handler_that_does_not_end_is_given_back(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent, drain_timeout=timedelta(milliseconds=20))
    gate = await stage.start()
    sentinel.go_on.clear()
    await gate.deliver(make_packet(idea()))
    await sentinel.started.wait()
    await stage.end()
    assert await gate.depth() == 1


async def test_a_worker_that_cannot_confirm_its_receipts_leaves_the_packet_in_the_queue(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(sentinel.agent, drain_timeout=timedelta(milliseconds=20))
    gate = await stage.start()

    async def lost(publication: Publication) -> None:
        raise PublishUnknown("no confirm")

    stage.bus.publish = lost
    await gate.deliver(make_packet(idea()))
    await sentinel.started.wait()
    await stage.end()
    assert await gate.depth() == 1


async def test_a_worker_that_cannot_emit_gives_the_packet_back(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    sentinel.reply = True
    stage = await make_stage(sentinel.agent, publish_deadline=timedelta(milliseconds=1))
    gate = await stage.start()
    publish, failures = stage.bus.publish, 2

    async def unsure(publication: Publication) -> None:
        nonlocal failures
        if publication.exchange == INGRESS and failures:
            failures -= 1
            raise PublishUnknown("no confirm")
        await publish(publication)

    stage.bus.publish = unsure
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert sentinel.handled == ["m-1"] * 3
    assert {message.message_id for message in gate.messages if message.type == "IDEA"} == {
        str(reply_id(packet.packet_id, "sentinel-1", 0))
    }


async def test_a_handler_that_raises_is_tried_again_as_often_as_it_says(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA, retries=1)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        raise ValueError("not now")

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet, attempt=1)
    await gate.ended(packet, ReceiptKind.RETRY)
    (asked,) = [receipt for receipt in gate.receipts if receipt.kind is ReceiptKind.RETRY]
    assert (asked.error, asked.after_ms) == ("ValueError: not now", None)
    assert await gate.dead_letters() == 0
    await gate.deliver(packet, attempt=2)

    await until(gate.dead_letters)
    assert [message.type for message in gate.messages].count("ERROR") == 1
    assert gate.kinds(packet).count(ReceiptKind.RETRY) == 1


async def test_a_handler_that_may_crash_has_no_packet_behind_it(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    started, go_on = asyncio.Event(), asyncio.Event()

    @agent.on(PacketType.IDEA, may_crash=True)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        started.set()
        await go_on.wait()

    gate = await (await make_stage(agent)).start()
    packets = [make_packet(idea(name)) for name in ("a", "b")]
    for packet in packets:
        await gate.deliver(packet)
    await started.wait()
    assert await gate.depth() == 1
    go_on.set()
    for packet in packets:
        await gate.ended(packet)


async def test_sessions_run_side_by_side_and_each_in_order(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    sentinel = Sentinel(concurrency=2)
    gate = await (await make_stage(sentinel.agent)).start()
    sentinel.go_on.clear()
    packets = [make_packet(idea(f"{session}{n}"), session_id=session) for n in (1, 2) for session in ("a", "b")]
    for packet in packets:
        await gate.deliver(packet)
    for packet in packets[:2]:
        await gate.ended(packet, ReceiptKind.DELIVERY_ACK)
    assert all(gate.kinds(packet) == [] for packet in packets[2:])
    sentinel.go_on.set()
    for packet in packets:
        await gate.ended(packet)
    assert [name for name in sentinel.handled if name[0] == "a"] == ["a1", "a2"]


async def test_a_restarted_worker_does_not_apply_a_packet_to_its_state_twice(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states = MemoryStateStore()
    packet = make_packet(idea())
    for _ in range(2):
        agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

        @agent.on(PacketType.IDEA)
        async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            ctx.state["count"] = ctx.state.get("count", 0) + 1

        stage = await make_stage(agent, states)
        gate = await stage.start()
        await gate.deliver(packet)
        await gate.ended(packet)
        await stage.end()
    stored = await states.load("sentinel-1", "session-1")
    assert stored is not None and b'"count":1' in stored[0]


async def test_two_workers_that_share_a_session_lose_no_change(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states = MemoryStateStore()
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        ctx.state.setdefault("seen", []).append(idea.payload.method_id)
        return idea.payload

    stages = [await make_stage(agent, states) for _ in range(2)]
    gates = [await stage.start() for stage in stages]
    for number, gate in enumerate((gates[0], gates[1], gates[0], gates[1])):
        packet = make_packet(idea(f"m-{number}"))
        await gate.deliver(packet)
        await gate.ended(packet)
    stored = await states.load("sentinel-1", "session-1")
    assert stored is not None and b'"seen":["m-0","m-1","m-2","m-3"]' in stored[0]


async def test_an_agent_without_queues_is_told_at_once(sentinel: Sentinel) -> None:
    from apc_agents import Worker, WorkerSettings

    broker = MemoryBroker(build_topology())
    worker = Worker(sentinel.agent, broker.connect("agent.sentinel-1"), settings=WorkerSettings())
    with pytest.raises(QueueMissing):
        await worker.run(asyncio.Event())


async def test_an_emit_waits_for_its_ack(make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    acked: list[Packet] = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        acked.append(await ctx.emit(idea.payload, to=["b-1", "b-2"], requires_ack=True))

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: len(gate.packets) == 1)
    asked = gate.packets[0]
    for sender in ("b-1", "b-2"):
        assert acked == []
        ack = AckPayload(acked_packet_id=asked.packet_id, ack_status="ACCEPTED")
        await gate.deliver(make_packet(ack, sender=sender, parent=asked))
    await gate.ended(packet)
    assert [one.packet_id for one in acked] == [asked.packet_id]

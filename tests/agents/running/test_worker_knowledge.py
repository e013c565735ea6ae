"""What a worker learns from control packets and refusals, even while a handler runs."""

from typing import Any

from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.agents.running.conftest import FAST, Sentinel

from apc_agents import Agent, HandlerContext
from apc_agents.running.delivery import SessionPosition
from apc_contracts import (
    ORCHESTRATOR,
    AckPayload,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    RunPhase,
    SessionState,
    Signal,
    SignalPayload,
    reply_id,
)


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

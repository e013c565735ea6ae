"""An emit that asks for an ACK ends with it, with a refusal, a rejection or the timeout."""

import asyncio
from datetime import timedelta
from typing import Any

from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker

from apc_agents import (
    Agent,
    EmitRefused,
    EmitRejected,
    EmitTimeout,
    HandlerContext,
)
from apc_contracts import (
    ORCHESTRATOR,
    AckPayload,
    Channel,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    reply_id,
)
from apc_contracts.judging.remedies import REMEDIES

GRACE = timedelta(milliseconds=50)


class Asking:
    """An agent whose handler emits with requires_ack and notes how that ended."""

    def __init__(self, to: str | tuple[str, ...] = "b-1", timeout: timedelta | None = None) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
        self.ends: list[Any] = []

        @self.agent.on(PacketType.IDEA)
        async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            try:
                await ctx.emit(idea.payload, to=to, requires_ack=True, ack_timeout=timeout)
            except (EmitRefused, EmitRejected, EmitTimeout) as error:
                self.ends.append(error)
            else:
                self.ends.append("acked")


async def ask(
    asking: Asking, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> tuple[Any, Packet, Packet]:
    gate = await (await make_stage(asking.agent, ack_grace=GRACE)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: len(gate.packets) == 1)
    return gate, packet, gate.packets[0]


async def test_the_gates_refusal_is_raised_with_its_code(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    asking = Asking()
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    assert asked.routing.requires_ack
    nack = make_packet(
        NackPayload(acked_packet_id=asked.packet_id, ack_status="REJECTED", reason="UNROUTABLE at recipients: none"),
        sender=ORCHESTRATOR,
        parent=asked,
        packet_id=reply_id(asked.packet_id, ORCHESTRATOR, "nack"),
        metadata={"refusal": {"code": "UNROUTABLE", "rule": "r", "path": "recipients", "message": "none"}},
    )
    await gate.deliver(nack, is_refusal=True)
    await gate.ended(packet)
    (error,) = asking.ends
    assert isinstance(error, EmitRefused)
    assert (error.code, error.path, error.message) == ("UNROUTABLE", "recipients", "none")
    assert error.retry_after_ms is None


async def test_a_refusal_is_a_warning_without_any_handler(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(idea.payload, to="nobody")

    gate = await (await make_stage(agent)).start()
    with capture_logs() as lines:
        await gate.deliver(make_packet(idea()))
        await gate.until(lambda: len(gate.packets) == 1)
        refusal = {"code": "UNROUTABLE", "rule": "r", "path": "recipients[0]", "message": "nobody is not registered"}
        nack = make_packet(
            NackPayload(acked_packet_id=gate.packets[0].packet_id, ack_status="REJECTED", reason="UNROUTABLE at …"),
            sender=ORCHESTRATOR,
            packet_id=reply_id(gate.packets[0].packet_id, ORCHESTRATOR, "nack"),
            metadata={"refusal": refusal},
        )
        for _ in range(2):  # a redelivery of the NACK is not a second refusal
            await gate.deliver(nack, is_refusal=True)
        later = make_packet(idea())
        await gate.deliver(later)
        await gate.ended(later)
    assert [line for line in lines if line["event"] == "packet_refused"] == [
        {
            "event": "packet_refused",
            "log_level": "warning",
            "agent_id": "sentinel-1",
            "packet_id": str(gate.packets[0].packet_id),
            "session_id": "session-1",
            "code": "UNROUTABLE",
            "field": "recipients[0]",
            "reason": "nobody is not registered",
            "remedy": REMEDIES["UNROUTABLE"],
        }
    ]


async def test_a_deferral_says_when_to_come_again(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    asking = Asking()
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    refusal = {"code": "QUOTA_EXCEEDED", "rule": "r", "path": "$", "message": "slower", "retry_after_ms": 40}
    nack = make_packet(
        NackPayload(acked_packet_id=asked.packet_id, ack_status="DEFERRED", reason="QUOTA_EXCEEDED at $: slower"),
        sender=ORCHESTRATOR,
        parent=asked,
        packet_id=reply_id(asked.packet_id, ORCHESTRATOR, "nack"),
        metadata={"refusal": refusal},
    )
    await gate.deliver(nack, is_refusal=True)
    await gate.ended(packet)
    (error,) = asking.ends
    assert isinstance(error, EmitRefused)
    assert (error.code, error.retry_after_ms) == ("QUOTA_EXCEEDED", 40)


async def test_a_recipients_nack_is_raised(make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea) -> None:
    asking = Asking()
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    payload = NackPayload(acked_packet_id=asked.packet_id, ack_status="REJECTED", reason="no time")
    await gate.deliver(make_packet(payload, sender="b-1", parent=asked))
    await gate.ended(packet)
    (error,) = asking.ends
    assert isinstance(error, EmitRejected)
    assert error.nack.payload.reason == "no time"


async def test_the_timeout_ends_the_wait(make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea) -> None:
    asking = Asking(timeout=timedelta(milliseconds=5))
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    await gate.ended(packet)
    (error,) = asking.ends
    assert isinstance(error, EmitTimeout)
    assert (error.packet_id, error.missing) == (asked.packet_id, {})
    assert asked.routing.ack_timeout_ms == 5


async def test_the_gate_says_who_is_missing(make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea) -> None:
    asking = Asking()
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    assert asked.routing.ack_timeout_ms == 30_000, "the gate waits as long as the worker does"
    payload = NackPayload(acked_packet_id=asked.packet_id, ack_status="DEFERRED", reason="no ACK from b-1 (ROUTED)")
    told = {"acknowledgement": {"missing": {"b-1": "ROUTED"}, "attempts": 1}}
    await gate.deliver(make_packet(payload, sender=ORCHESTRATOR, parent=asked, metadata=told))
    await gate.ended(packet)
    (error,) = asking.ends
    assert isinstance(error, EmitTimeout)
    assert error.missing == {"b-1": "ROUTED"} and "no ACK from b-1" in str(error)


async def test_a_broadcast_is_acked_by_the_first(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    asking = Asking(to="_all")
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    payload = AckPayload(acked_packet_id=asked.packet_id, ack_status="ACCEPTED")
    await gate.deliver(make_packet(payload, sender="anyone", parent=asked))
    await gate.ended(packet)
    assert asking.ends == ["acked"]


async def test_modules_of_one_agent_talk_in_its_process(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    seen: list[tuple[Channel, str]] = []
    is_done = asyncio.Event()

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        seen.append((idea.channel, idea.payload.method_id))
        if idea.channel is Channel.INTER_AGENT:
            inner = idea.payload.model_copy(update={"method_id": "inner"})
            await ctx.emit(inner, to="sentinel-1", channel=Channel.INTRA_AGENT)
        else:
            is_done.set()

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea("outer"))
    await gate.deliver(packet)
    await gate.ended(packet)
    async with asyncio.timeout(10):
        await is_done.wait()
    assert seen == [(Channel.INTER_AGENT, "outer"), (Channel.INTRA_AGENT, "inner")]
    (inner,) = gate.packets
    assert gate.kinds(inner) == [], "the gate has not delivered it: it has no receipts"

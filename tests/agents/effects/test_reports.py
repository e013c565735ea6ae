"""What a worker reports of its effects: the claim before, the rest with the delivery, and again after a crash."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from tests.agents.conftest import Gate, MakeIdea, MakePacket, StageMaker

from apc_agents import (
    Agent,
    AgentTestClient,
    EffectNotMade,
    EffectUnknown,
    EmitRefused,
    EmitTimeout,
    HandlerContext,
)
from apc_agents.effects import EffectClaim, EffectId, InMemoryEffectStore
from apc_agents.handling.state import InMemoryStateStore
from apc_bus import headers
from apc_contracts import (
    ORCHESTRATOR,
    AckPayload,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    ReceiptKind,
    reply_id,
)

Handler = Callable[[Packet[IdeaPayload], HandlerContext], Any]
EFFECT = ReceiptKind.EFFECT


def agent_with(handler: Handler) -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    agent.on(PacketType.IDEA)(handler)
    return agent


def entries(gate: Gate) -> list[str]:
    return [receipt.effect.entry for receipt in gate.receipts if receipt.effect is not None]


async def test_the_claim_is_confirmed_before_the_effect(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    seen: list[Any] = []

    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        async def make() -> dict[str, str]:
            await gate.until(lambda: entries(gate) == ["claimed"])
            seen.append("made")
            return {"receipt": "r-1"}

        await ctx.once("charge", make, reference=lambda result: result["receipt"])

    gate = await (await make_stage(agent_with(pay))).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert seen == ["made"]
    claimed, made = [receipt.effect for receipt in gate.receipts if receipt.effect is not None]
    assert (claimed.entry, made.entry, claimed.claim) == ("claimed", "made", made.claim)
    assert (made.key, made.reference) == ("charge", "r-1")
    assert made.digest == sha256(b'{"receipt":"r-1"}').hexdigest()
    assert "r-1" not in str([message.body for message in gate.messages if b'"claimed"' in message.body])


async def test_what_became_of_it_is_with_the_gate_before_the_next_packet(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    at_arrival: list[list[str]] = []

    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        for key in ("one", "two"):
            await ctx.once(key, lambda: None)
            await ctx.emit(packet.payload, to="b-1")

    stage = await make_stage(agent_with(pay), receipt_linger=timedelta(seconds=30))
    gate = await stage.start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    told: list[str] = []
    for message in gate.messages:
        riding = str(message.headers.get(headers.RECEIPTS, ""))
        told += ["made"] * (riding + message.body.decode()).count('"entry":"made"')
        if message.type == PacketType.IDEA:
            at_arrival.append(list(told))
    assert at_arrival == [["made"], ["made", "made"]]


@pytest.mark.parametrize(
    ("error", "entry"), [(EffectNotMade("no"), "released"), (RuntimeError("lost connection"), "unknown")]
)
async def test_what_the_function_raises_is_reported(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, error: Exception, entry: str
) -> None:
    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        def make() -> None:
            raise error

        with pytest.raises(type(error)):
            await ctx.once("charge", make)

    gate = await (await make_stage(agent_with(pay))).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert entries(gate) == ["claimed", entry]
    (last,) = [receipt.effect for receipt in gate.receipts if receipt.effect and receipt.effect.entry == entry]
    assert str(error) in str(last.note)


async def test_a_later_attempt_reports_what_the_store_knows(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """The worker that made it may have died before it could: the gate keeps each entry once."""

    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.once("charge", lambda: 7)

    store, packet = InMemoryEffectStore(), make_packet(idea())
    effect_id, claim_id = EffectId(packet.packet_id, "sentinel-1", "charge"), uuid4()
    claim = EffectClaim(
        effect_id=effect_id, claim_id=claim_id, session_id="session-1", worker="dead", expires_at=packet.expires
    )
    await store.claim(claim, timedelta(minutes=1))
    await store.record(effect_id, claim_id, 7)
    gate = await (await make_stage(agent_with(pay), effects=store)).start()
    await gate.deliver(packet)
    await gate.ended(packet)
    found = [receipt.effect for receipt in gate.receipts if receipt.effect is not None]
    assert [(one.entry, one.claim) for one in found] == [("claimed", claim_id), ("made", claim_id)]
    assert found[1].digest == sha256(b"7").hexdigest()


async def test_a_handler_that_settles_or_releases_reports_it(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        for key in ("lost", "found"):
            try:
                await ctx.once(key, lambda: 7)
            except EffectUnknown:
                await (ctx.release(key) if key == "lost" else ctx.settle(key, 8))
        await ctx.once("lost", lambda: 9)

    store, packet = InMemoryEffectStore(), make_packet(idea())
    for key in ("lost", "found"):
        claim = EffectClaim(
            effect_id=EffectId(packet.packet_id, "sentinel-1", key),
            claim_id=uuid4(),
            session_id="session-1",
            worker="dead",
            expires_at=packet.expires,
        )
        await store.claim(claim, timedelta(0))
    gate = await (await make_stage(agent_with(pay), effects=store)).start()
    await gate.deliver(packet)
    await gate.ended(packet)
    told = [(one.effect.key, str(one.effect.entry)) for one in gate.receipts if one.effect is not None]
    assert sorted(told[:6]) == [
        ("found", "claimed"),
        ("found", "settled"),
        ("found", "unknown"),
        ("lost", "claimed"),
        ("lost", "released"),
        ("lost", "unknown"),
    ]
    assert told[6:] == [("lost", "claimed"), ("lost", "made")]


async def test_a_worker_that_stops_before_the_effect_gives_its_claim_back(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    store, reached = InMemoryEffectStore(), asyncio.Event()

    async def pay(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        reached.set()
        await ctx.once("charge", lambda: pytest.fail("it was made"))

    stage = await make_stage(agent_with(pay), effects=store, drain_timeout=timedelta(milliseconds=100))
    gate = await stage.start()

    async def hang(*_: Any) -> None:
        await asyncio.Event().wait()

    publish, stage.bus.publish = stage.bus.publish, hang
    await gate.deliver(make_packet(idea()))
    await reached.wait()
    await stage.end()
    stage.bus.publish = publish
    assert list(await store.list()) == []


# ctx.once(after=...)


class Acting:
    """An agent whose handler acts on its packet once the gate has accepted it."""

    def __init__(self, *, by_id: bool = False) -> None:
        self.made = 0
        self.ends: list[Any] = []

        async def act(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            emitted = await ctx.emit(packet.payload, to="b-1")
            try:
                self.ends.append(await ctx.once("act", self.make, after=emitted.packet_id if by_id else emitted))
            except (EmitRefused, EmitTimeout) as error:
                self.ends.append(error)

        self.agent = agent_with(act)

    def make(self) -> int:
        self.made += 1
        return self.made


async def asked(gate: Gate) -> Packet:
    """Wait until the worker asks for the verdict; return the packet."""
    await gate.until(lambda: any(headers.ASKS_VERDICT in message.headers for message in gate.messages))
    first, again = gate.packets[:2]
    assert first == again
    return first


def acceptance(packet: Packet, make_packet: MakePacket, **fields: Any) -> Packet:
    return make_packet(
        AckPayload(acked_packet_id=packet.packet_id, ack_status="ACCEPTED"),
        **{
            "sender": ORCHESTRATOR,
            "parent": packet,
            "packet_id": reply_id(packet.packet_id, ORCHESTRATOR, "accepted"),
        }
        | fields,
    )


@pytest.mark.parametrize("by_id", [False, True])
async def test_it_is_made_when_the_gate_has_accepted_the_packet(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, by_id: bool
) -> None:
    acting, packet = Acting(by_id=by_id), make_packet(idea())
    gate = await (await make_stage(acting.agent)).start()
    await gate.deliver(packet)
    emitted = await asked(gate)
    assert (acting.made, entries(gate)) == (0, [])
    # Another's ACK is not the gate's word.
    await gate.deliver(acceptance(emitted, make_packet, sender="b-1", packet_id=uuid4()))
    await gate.until(lambda: any(one.kind == ReceiptKind.DELIVERY_ACK for one in gate.receipts))
    assert acting.made == 0
    answer = acceptance(emitted, make_packet)
    await gate.deliver(answer, is_refusal=True)
    await gate.ended(packet)
    assert acting.ends == [1]
    assert gate.kinds(answer) == [], "the gate's answer has no entry in the log, so it has no receipts"


async def test_it_is_not_made_when_the_gate_has_refused_the_packet(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    acting, packet = Acting(), make_packet(idea())
    gate = await (await make_stage(acting.agent)).start()
    await gate.deliver(packet)
    emitted = await asked(gate)
    nack = make_packet(
        NackPayload(acked_packet_id=emitted.packet_id, ack_status="REJECTED", reason="no"),
        sender=ORCHESTRATOR,
        parent=emitted,
        packet_id=reply_id(emitted.packet_id, ORCHESTRATOR, "nack"),
        metadata={"refusal": {"code": "UNROUTABLE", "rule": "r", "path": "recipients", "message": "none"}},
    )
    await gate.deliver(nack, is_refusal=True)
    await gate.ended(packet)
    assert (acting.made, [type(one) for one in acting.ends], entries(gate)) == (0, [EmitRefused], [])
    # Known from now on: the next attempt need not ask.
    questions = [message for message in gate.messages if headers.ASKS_VERDICT in message.headers]
    await gate.deliver(packet, attempt=2)
    await gate.until(lambda: gate.kinds(packet).count(ReceiptKind.OUTCOME) == 2)
    assert [message for message in gate.messages if headers.ASKS_VERDICT in message.headers] == questions
    assert (acting.made, acting.ends[1].code) == (0, "UNROUTABLE")


async def test_an_answer_that_another_process_took_is_found(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """As that to a required ACK: it is kept beside ctx.state and outlives a crash."""
    acting, packet, states = Acting(), make_packet(idea()), InMemoryStateStore()
    first = await make_stage(acting.agent, states=states, ack_timeout=timedelta(seconds=1), ack_grace=timedelta(0))
    gate = await first.start()
    await gate.deliver(packet)
    emitted = await asked(gate)
    await gate.ended(packet)
    assert [type(one) for one in acting.ends] == [EmitTimeout]
    answer = acceptance(emitted, make_packet)
    await gate.deliver(answer, is_refusal=True)
    later = make_packet(idea("other"), session_id="session-2")
    await gate.deliver(later)
    await first.end()
    second = await make_stage(acting.agent, states=states)
    gate = await second.start()
    await gate.deliver(packet, attempt=2)
    await gate.until(lambda: ReceiptKind.OUTCOME in gate.kinds(packet))
    assert acting.ends[-1] == 1


async def test_the_test_client_accepts_what_it_is_asked_about(make_packet: MakePacket, idea: MakeIdea) -> None:
    acting = Acting()
    async with AgentTestClient(acting.agent) as client:
        await client.deliver(make_packet(idea()))
        await client.settled()
        assert (acting.ends, len(client.emitted)) == ([1], 1)

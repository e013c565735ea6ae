"""An emit that asks for an ACK ends with it, with a refusal, a rejection or the timeout."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker

from apc_agents import (
    Agent,
    EmitRefused,
    EmitRejected,
    EmitTimeout,
    HandlerContext,
    InMemoryStateStore,
    Worker,
    WorkerSettings,
)
from apc_bus.topology import agent_queue
from apc_contracts import (
    ORCHESTRATOR,
    AckPayload,
    Channel,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    RetractionPayload,
    reply_id,
)
from apc_contracts.judging.verdict import REMEDIES

GRACE = timedelta(milliseconds=50)


class Asking:
    """An agent whose handler emits with requires_ack and notes how that ended."""

    def __init__(self, to: str | tuple[str, ...] = "b-1", timeout: timedelta | None = None) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
        self.ends: list[Any] = []

        @self.agent.on(PacketType.IDEA)
        async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
            if idea.payload.method_id == "other":
                return
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
    assert (error.rule, error.remedy, error.values) == ("r", REMEDIES["UNROUTABLE"], {})
    assert error.retry_after_ms is None


RULE_FAILED = {
    "code": "RULE_FAILED",
    "rule": "two-witnesses",
    "path": "$",
    "message": "An action needs two findings (authors = 1).",
    "say": "An action needs two findings.",
    "requires": 'authors("finding/1") >= 2',
    "values": {'authors("finding/1")': 1},
    "remedy": "Cite both findings.",
}


async def test_a_rules_refusal_says_its_sentence_and_remedy(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    asking = Asking()
    gate, packet, asked = await ask(asking, make_stage, make_packet, idea)
    with capture_logs() as lines:
        nack = make_packet(
            NackPayload(acked_packet_id=asked.packet_id, ack_status="REJECTED"),
            sender=ORCHESTRATOR,
            parent=asked,
            packet_id=reply_id(asked.packet_id, ORCHESTRATOR, "nack"),
            metadata={"refusal": RULE_FAILED},
        )
        await gate.deliver(nack, is_refusal=True)
        await gate.ended(packet)
    (error,) = asking.ends
    assert {name: getattr(error, name) for name in RULE_FAILED} == RULE_FAILED
    assert str(error) == "RULE_FAILED at $: An action needs two findings (authors = 1). Remedy: Cite both findings."
    (line,) = [one for one in lines if one["event"] == "packet_refused"]
    assert (line["rule"], line["remedy"]) == ("two-witnesses", "Cite both findings.")


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
            "rule": "r",
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


def ack_of(packet: Packet, make_packet: MakePacket, number: int = 0) -> Packet:
    """Return the ACK of what the handler of a packet emits."""
    payload = AckPayload(acked_packet_id=reply_id(packet.packet_id, "sentinel-1", number), ack_status="ACCEPTED")
    return make_packet(payload, sender="b-1", parent=packet)


@pytest.mark.parametrize("prefetch", [1, 100])
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("priority", [4, 9])
async def test_a_repeated_handler_gets_the_ack_that_is_in_the_inbox(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, prefetch: int, before: int, priority: int
) -> None:
    """As a crash leaves it: the ACK came to the worker that died, and stands behind the handler or before it."""
    asking = Asking()
    stage = await make_stage(asking.agent, worker_prefetch=prefetch)
    packet = make_packet(idea(), priority=priority)
    await stage.gate.deliver(packet)
    for _ in range(before):
        await stage.gate.deliver(make_packet(idea("other"), priority=9))
    await stage.gate.deliver(ack_of(packet, make_packet))
    gate = await stage.start()
    await gate.until(lambda: bool(asking.ends))
    assert asking.ends[0] == "acked"


@pytest.mark.parametrize("is_refused", [False, True])
async def test_another_attempt_gets_the_answer_of_the_first(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, is_refused: bool
) -> None:
    """The answer has left the inbox: no gate and no recipient says it again."""
    asking = Asking()
    gate = await (await make_stage(asking.agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: bool(gate.packets))
    answer = ack_of(packet, make_packet)
    if is_refused:
        refused = gate.packets[0].packet_id
        payload = NackPayload(acked_packet_id=refused, ack_status="REJECTED", reason="no")
        told = {"refusal": {"code": "UNROUTABLE", "path": "recipients", "message": "none"}}
        nack_id = reply_id(refused, ORCHESTRATOR, "nack")
        answer = make_packet(payload, sender=ORCHESTRATOR, packet_id=nack_id, metadata=told)
    await gate.deliver(answer, is_refusal=is_refused)
    await gate.until(lambda: len(asking.ends) == 1)
    await gate.deliver(packet, attempt=2)
    await gate.until(lambda: len(asking.ends) == 2)
    assert [str(end) for end in asking.ends] == [str(asking.ends[0])] * 2


async def test_the_answer_may_come_to_another_process_of_the_agent(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    asking, states = Asking(), InMemoryStateStore()
    stage = await make_stage(asking.agent, states, worker_prefetch=1)
    gate = await stage.start()
    packet = make_packet(idea(), priority=9)
    await gate.deliver(packet)
    await gate.until(lambda: bool(gate.packets))
    other, stop = Asking(), asyncio.Event()
    settings = WorkerSettings(database_url=None, worker_prefetch=1)
    worker = Worker(other.agent, gate.connect(), settings=settings, states=states)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        await worker.ready.wait()
        ack = ack_of(packet, make_packet)
        await gate.deliver(ack)
        await gate.ended(ack)
        await gate.until(lambda: bool(asking.ends))
        stop.set()
    assert (asking.ends, other.ends) == (["acked"], [])


async def test_a_handler_that_waits_gives_up_the_turn_of_a_careful_worker(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it waits for may be the work of another packet that came before the workers ended."""
    monkeypatch.setattr("apc_bus.last_resort.PATIENCE_SECONDS", 1000)
    asking = Asking()
    asking.agent.concurrency = 2
    stage = await make_stage(asking.agent)
    asks, other = make_packet(idea(), priority=9), make_packet(idea("other"), session_id="session-2")
    for packet, is_urgent in ((asks, True), (other, False)):
        queue = agent_queue("sentinel-1", urgent=is_urgent)
        await stage.gate.deliver(packet)
        with pytest.raises(ZeroDivisionError):
            async with stage.bus.subscribe(queue, watch=stage.worker._last_resort.watch(stage.bus, queue)) as inbox:
                await inbox.receive()
                raise ZeroDivisionError("nobody has foreseen this")
    gate = await stage.start()
    await gate.ended(other)
    assert not asking.ends
    await gate.deliver(ack_of(asks, make_packet))
    await gate.ended(asks)
    assert asking.ends == ["acked"]


@pytest.mark.parametrize("channel", [Channel.INTRA_AGENT, Channel.INTER_AGENT])
async def test_what_nobody_acknowledges_is_not_waited_for(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, channel: Channel
) -> None:
    """Packets between modules of one agent, and retractions: the gate expects no ACK of them."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    ends: list[str] = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        if idea.channel is Channel.INTRA_AGENT:
            return
        if channel is Channel.INTRA_AGENT:
            await ctx.emit(idea.payload, to="sentinel-1", channel=channel, requires_ack=True)
        else:
            payload = RetractionPayload(target_packet_id=idea.packet_id, reason="r")
            await ctx.emit(payload, to="b-1", requires_ack=True)
        ends.append("returned")

    gate = await (await make_stage(agent, ack_timeout=timedelta(minutes=1))).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert ends == ["returned"]

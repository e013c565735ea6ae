"""The worker at its bus: once in effect, in order, acknowledged only after its receipts, drained at the end."""

import asyncio
from datetime import timedelta
from typing import cast
from uuid import UUID

from structlog.testing import capture_logs
from tests.agents.conftest import Gate, MakeIdea, MakePacket, StageMaker
from tests.agents.running.conftest import FAST, Sentinel
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext, InMemoryStateStore, Retry
from apc_bus import headers
from apc_bus.errors import PublishUnknown
from apc_bus.port import Publication
from apc_bus.topology import RECEIPTS, agent_queue
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
from apc_contracts.vocabulary import PRESENCE_SESSION


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


def ends(gate: Gate) -> list[tuple[int, ReceiptKind]]:
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


async def test_a_clock_that_is_ahead_expires_nothing(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """The broker hands out nothing that has expired, so what seems to have has met a wrong clock."""
    gate = await (await make_stage(sentinel.agent)).start()
    packets = [make_packet(idea(name), age=timedelta(hours=2), ttl=timedelta(hours=1)) for name in ("one", "two")]
    with capture_logs() as logs:
        for packet in packets:
            await gate.deliver(packet, time_left=timedelta(minutes=59))
            await gate.ended(packet, ReceiptKind.OUTCOME)
    assert sentinel.handled == ["one", "two"]
    (said,) = (one for one in logs if one["event"] == "worker_clock_wrong")
    assert said["log_level"] == "warning" and 3600 < said["seconds_ahead"] < 7200


async def test_a_clock_that_is_behind_is_told_of_and_counts(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """What a delivery tells may be forged: a later time would expire what is valid."""
    gate = await (await make_stage(sentinel.agent)).start()
    fresh = make_packet(idea("fresh"), age=-timedelta(hours=2), ttl=timedelta(hours=1))
    await gate.deliver(fresh, time_left=timedelta(hours=1))
    await gate.ended(fresh, ReceiptKind.OUTCOME)
    other = make_packet(idea("valid"), age=timedelta(minutes=-30), ttl=timedelta(hours=1))
    await gate.deliver(other)
    await gate.ended(other, ReceiptKind.OUTCOME)
    assert sentinel.handled == ["fresh", "valid"]


async def test_what_a_suspended_worker_reads_late_has_expired(
    sentinel: Sentinel, make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """Its clock fits the deliveries before: the packet waited here and not at the broker."""
    gate = await (await make_stage(sentinel.agent)).start()
    fresh = make_packet(idea("fresh"), ttl=timedelta(hours=1))
    await gate.deliver(fresh, time_left=timedelta(hours=1))
    late = make_packet(idea(), age=timedelta(minutes=2), ttl=timedelta(minutes=1))
    await gate.deliver(late, time_left=timedelta(minutes=1))
    await gate.ended(late, ReceiptKind.EXPIRED)
    assert sentinel.handled == ["fresh"]


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
    states = InMemoryStateStore()
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
    states = InMemoryStateStore()
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


async def test_a_worker_says_nothing_from_a_state_that_another_has_replaced(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    states = InMemoryStateStore()
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload | None:
        if idea.payload.method_id == "no state":
            return None
        seen = ctx.state["seen"] = ctx.state.get("seen", 0) + 1
        return idea.payload.model_copy(update={"method_id": f"seen {seen}"})

    stages = [await make_stage(agent, states) for _ in range(2)]
    gates = [await stage.start() for stage in stages]
    for number, name in ((0, "no state"), (1, "no state"), (0, "a"), (1, "b"), (0, "c"), (1, "d")):
        packet = make_packet(idea(name))
        await gates[number].deliver(packet)
        await gates[number].ended(packet)
    said = [[cast(IdeaPayload, packet.payload).method_id for packet in gate.packets] for gate in gates]
    assert said == [["seen 1", "seen 3"], ["seen 2", "seen 4"]]


async def test_each_of_several_starters_reads_and_changes_the_state(make_stage: StageMaker) -> None:
    """Also those behind one that saves nothing; none of them runs twice for it."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    runs: list[str] = []

    @agent.on_start
    async def look(ctx: HandlerContext) -> None:
        runs.append(f"look {ctx.state}")

    @agent.on_start
    async def count(ctx: HandlerContext) -> None:
        runs.append("count")
        ctx.state["starts"] = ctx.state.get("starts", 0) + 1

    states = InMemoryStateStore()
    for start in (1, 2):
        stage = await make_stage(agent, states)
        await stage.start()
        await stage.end()
        saved = b'{"handled":[],"state":{"starts":%d}}' % start
        assert await states.load("sentinel-1", PRESENCE_SESSION) == (saved, start)
    assert runs == ["look {}", "count", "look {'starts': 1}", "count"]


async def test_a_handler_that_waits_for_an_ack_takes_no_more_ordinary_packets(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """A crash would count against each of them."""
    agent, ends = Agent("sentinel-1", role="sentinel", swarm="hybrid"), []

    @agent.on(PacketType.IDEA, may_crash=True)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(idea.payload, to="b-1", requires_ack=True)
        ends.append(idea.packet_id)

    states = CountingStore()
    stage = await make_stage(agent, states, drain_timeout=timedelta(0))
    packets = [make_packet(idea(f"m-{number}")) for number in range(5)]
    for packet in packets:
        await stage.gate.deliver(packet)
    gate = await stage.start()
    await until(lambda: states.looks > 1)
    (consumer,) = gate.broker.queue(agent_queue("sentinel-1", False)).consumers
    assert len(consumer._unacked) == 1
    acked = AckPayload(acked_packet_id=reply_id(packets[0].packet_id, "sentinel-1", 0), ack_status="ACCEPTED")
    await gate.deliver(make_packet(acked, sender="b-1", parent=packets[0]))
    await gate.ended(packets[0])
    assert ends == [packets[0].packet_id]


class CountingStore(InMemoryStateStore):
    """Counts how often a handler looks for answers."""

    looks = 0

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        self.looks += 1
        return await super().load_answers(agent_id, session_id, packet_id)

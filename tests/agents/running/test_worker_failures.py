"""What a worker does with a delivery that it cannot handle, confirm or finish: gives it back, retries or rejects it."""

import asyncio
from datetime import timedelta
from functools import partial

import pytest
import structlog
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.agents.running.conftest import Sentinel
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext
from apc_bus import headers
from apc_bus.errors import PublishUnknown, QueueMissing
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Publication
from apc_bus.topology import INGRESS, build_topology
from apc_contracts import (
    IdeaPayload,
    Packet,
    PacketType,
    ReceiptKind,
    reply_id,
)


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


async def test_a_failure_is_logged_without_local_variables(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, caplog: pytest.LogCaptureFixture
) -> None:
    """In a program that has not set structlog up either, whose default shows them and needs half a second to do so."""
    structlog.reset_defaults()  # a test that captures logs sets it up
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        url = "amqp://me:" + "hunter" + "2@broker/"
        raise ZeroDivisionError(f"no model by {url[:4]}")

    gate = await (await make_stage(agent)).start()
    await gate.deliver(make_packet(idea()))
    await gate.until(lambda: len(gate.packets) == 1)
    assert "ZeroDivisionError: no model by amqp" in caplog.text
    assert "hunter2" not in caplog.text


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


async def test_each_attempt_of_a_requeued_packet_is_told_when_it_fails(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """Under the id of the first, the gate would drop the second: its attempt differs."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        raise ValueError("not now")

    gate = await (await make_stage(agent)).start()

    def told() -> list[str]:
        return [message.message_id for message in gate.messages if message.type == "ERROR"]

    def is_told(attempts: int) -> bool:
        return len(told()) >= attempts

    packet = make_packet(idea())
    for attempt in (1, 2, 3):
        await gate.deliver(packet, attempt=attempt)
        await until(partial(is_told, attempt))
    assert len(set(told())) == 3


async def test_what_a_requeued_packet_makes_has_not_the_id_of_an_earlier_error(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    """The gate would drop it as a rerun of the ERROR, and the session would wait for it forever."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")
    is_mended = False

    @agent.on(PacketType.IDEA)
    async def review(packet: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        if not is_mended:
            raise ValueError("not now")
        return idea("mended")

    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet, attempt=1)
    await gate.until(lambda: [one.packet_type for one in gate.packets] == [PacketType.ERROR])
    is_mended = True
    await gate.deliver(packet, attempt=2)
    await gate.until(lambda: len(gate.packets) == 2)
    error, answer = gate.packets
    assert answer.packet_type is PacketType.IDEA
    assert answer.packet_id == reply_id(packet.packet_id, "sentinel-1", 0) != error.packet_id


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


async def test_an_agent_without_queues_is_told_at_once(sentinel: Sentinel) -> None:
    from apc_agents import Worker, WorkerSettings

    broker = InMemoryBroker(build_topology())
    worker = Worker(sentinel.agent, broker.connect("agent.sentinel-1"), settings=WorkerSettings())
    with pytest.raises(QueueMissing):
        await worker.run(asyncio.Event())

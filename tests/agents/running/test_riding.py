"""A worker that answers packet after packet: the end of one delivery rides on the answer to the next."""

from datetime import timedelta

from tests.agents.conftest import MakeIdea, MakePacket, StageMaker

from apc_agents import Agent, HandlerContext
from apc_bus import headers
from apc_bus.errors import PublishUnknown
from apc_bus.port import Publication
from apc_bus.topology import INGRESS, agent_queue
from apc_contracts import IdeaPayload, Packet, PacketType, ReceiptKind

LINGER = timedelta(seconds=30)
"""Nothing ends because time has passed."""


def answering_agent(idea: MakeIdea) -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="s")

    @agent.on(PacketType.IDEA)
    async def answer(packet: Packet[IdeaPayload], context: HandlerContext) -> IdeaPayload:
        return idea(packet.payload.method_id)

    return agent


async def test_the_end_of_a_delivery_rides_on_the_next_answer(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(answering_agent(idea), outcome_linger=LINGER, receipt_linger=LINGER)
    gate = await stage.start()
    first, second = make_packet(idea("m-1")), make_packet(idea("m-2"))
    await gate.deliver(first)
    await gate.until(lambda: len(gate.packets) == 1)
    await gate.deliver(second)
    await gate.until(lambda: len(gate.packets) == 2)
    assert gate.kinds(first) == [ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME]
    assert not gate.kinds(second)
    answers = [message for message in gate.messages if message.type == "IDEA"]
    assert [headers.RECEIPTS in message.headers for message in answers] == [False, True]
    assert not [message for message in gate.messages if message.type == headers.TYPE_RECEIPTS]
    await stage.end()
    await gate.ended(second)
    assert await gate.depth() == 0


async def test_receipts_of_an_answer_without_a_confirm_are_sent_again(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    stage = await make_stage(
        answering_agent(idea),
        outcome_linger=LINGER,
        receipt_linger=LINGER,
        publish_deadline=timedelta(milliseconds=1),
    )
    gate = await stage.start()
    first, second = make_packet(idea("m-1")), make_packet(idea("m-2"))
    await gate.deliver(first)
    await gate.until(lambda: len(gate.packets) == 1)
    publish, failures = stage.bus.publish, 1

    async def unsure(publication: Publication) -> None:
        nonlocal failures
        if publication.exchange == INGRESS and failures:
            failures -= 1
            unacked = gate.broker.queue(agent_queue("sentinel-1", False)).consumers[0]._unacked
            assert len(unacked) == 2, "neither is acknowledged before its receipts are confirmed"
            raise PublishUnknown("no confirm")
        await publish(publication)

    stage.bus.publish = unsure
    await gate.deliver(second)
    await gate.ended(first)
    await stage.end()
    await gate.ended(second)
    assert await gate.depth() == 0

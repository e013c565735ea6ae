"""What an agent hears on the substrate."""

import pytest
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.support.waiting import until

from apc_agents import Agent, AgentInvalid, HandlerContext
from apc_bus.port import Message, Publication
from apc_bus.topology import SUBSTRATE, SUBSTRATE_STREAM
from apc_contracts import IdeaPayload, Packet, PacketType, reply_id
from apc_contracts.wire.parsing import seal


def listening_agent(heard: list[str]) -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        heard.append("delivered " + idea.payload.method_id)

    @agent.on_substrate
    async def hear(packet: Packet, ctx: HandlerContext) -> IdeaPayload | None:
        idea = packet.payload_as(IdeaPayload)
        heard.append(idea.method_id)
        if idea.method_id == "bad":
            raise RuntimeError("cannot hear this")
        return idea if idea.method_id == "asks" else None

    return agent


async def test_a_packet_of_the_substrate_is_heard_and_answered(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    heard: list[str] = []
    gate = await (await make_stage(listening_agent(heard))).start()

    async def is_consumed() -> bool:
        return bool((await gate.bus.depth(SUBSTRATE_STREAM)).consumers)

    await until(is_consumed)

    async def say(packet: Packet, body: bytes | None = None) -> None:
        message = Message(body or seal(packet).body, str(packet.packet_id), type=packet.packet_type.value)
        await gate.bus.publish(Publication(SUBSTRATE, "", message))

    asks = make_packet(idea("asks"), to="_substrate")
    await say(make_packet(idea("own"), to="_substrate", sender="sentinel-1"))
    await say(make_packet(idea("unreadable"), to="_substrate"), b"{")
    await say(make_packet(idea("bad"), to="_substrate"))
    await say(asks)
    await gate.until(lambda: len(gate.packets) == 1)

    assert heard == ["bad", "asks"]
    (answer,) = gate.packets
    assert (answer.packet_id, answer.recipients[0].agent_id) == (reply_id(asks.packet_id, "sentinel-1", 0), "builder-1")
    assert not gate.receipts, "nobody waits for the end of what everybody hears"


def test_one_listener_of_the_right_shape() -> None:
    agent = listening_agent([])
    with pytest.raises(AgentInvalid, match="two on_substrate handlers"):

        @agent.on_substrate
        async def again(packet: Packet, ctx: HandlerContext) -> None: ...

    with pytest.raises(AgentInvalid, match="takes other parameters"):

        @Agent("b", role="r", swarm="s").on_substrate
        async def short(packet: Packet) -> None: ...

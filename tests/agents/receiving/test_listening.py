"""What an agent hears on the substrate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aio_pika
import pytest
from pydantic import SecretStr
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.support.waiting import until

from apc_agents import Agent, AgentInvalid, HandlerContext
from apc_agents.running import intake
from apc_agents.running.delivery import Inbound, KnownSessions, OrchestratorTime
from apc_agents.running.intake import Ear, SubstrateListener
from apc_bus.concurrency import cancelled
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import SUBSTRATE, SUBSTRATE_STREAM, build_topology
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


async def test_nothing_is_missed_while_the_stream_is_away(
    amqp_vhost_url: str, make_packet: MakePacket, idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the first packet nor when somebody has made the stream again, with offsets that begin at 0."""
    monkeypatch.setattr(intake, "LAST_SECONDS", 0.5)
    heard: list[str] = []

    def put(inbound: Inbound) -> None:
        heard.append(inbound.packet.payload_as(IdeaPayload).method_id)
        inbound.done.set_result(None)

    async def say(*names: str) -> None:
        for name in names:
            packet = make_packet(idea(name), to="_substrate")
            message = Message(seal(packet).body, str(packet.packet_id), type=packet.packet_type.value)
            await bus.publish(Publication(SUBSTRATE, "", message))

    @asynccontextmanager
    async def listening() -> AsyncIterator[None]:
        run = asyncio.create_task(listener.run())
        await until(lambda: listener._since is not None, 10)
        yield
        await cancelled(run)

    topology = build_topology()
    await apply_rabbit(amqp_vhost_url, topology)
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)), purpose="test")
    time = OrchestratorTime("sentinel-1")
    ears = {"sentinel-1": Ear("sentinel-1", KnownSessions("sentinel-1"), put, time)}
    listener = SubstrateListener(bus, ears, 1, "sentinel-1")
    async with listening():
        pass
    await say("one", "two")
    async with listening():
        await until(lambda: len(heard) == 2, 10)
    await say("three")
    async with listening():
        await until(lambda: len(heard) == 3, 10)
    async with await aio_pika.connect(amqp_vhost_url) as connection, connection.channel() as channel:
        await channel.queue_delete(SUBSTRATE_STREAM)
    await apply_rabbit(amqp_vhost_url, topology)
    await say("four")
    async with listening():
        await until(lambda: len(heard) == 4, 10)
        await say("five")
        await until(lambda: len(heard) == 5, 10)
    await bus.close()
    assert heard == ["one", "two", "three", "four", "five"]


def test_one_listener_of_the_right_shape() -> None:
    agent = listening_agent([])
    with pytest.raises(AgentInvalid, match="two on_substrate handlers"):

        @agent.on_substrate
        async def again(packet: Packet, ctx: HandlerContext) -> None: ...

    with pytest.raises(AgentInvalid, match="takes other parameters"):

        @Agent("b", role="r", swarm="s").on_substrate
        async def short(packet: Packet) -> None: ...

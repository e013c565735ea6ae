"""Bodies beyond 256 KiB: the SDK takes their texts round the gate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256

from tests.integration.conftest import House
from tests.support.traffic import AGENTS, make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_contracts import Packet, PacketType
from apc_contracts.payloads.by_type import IdeaPayload

TEXT = "the whole story, and more of it; " * 40_000
HASH = f"sha256:{sha256(TEXT.encode()).hexdigest()}"
LOGGED = """
SELECT octet_length(body_stored) AS size, sender_agent_id, bodies.packet -> 'payload' ->> 'intent' AS intent
FROM apc_log.agent_packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE agent_packets.packet_type = 'IDEA' ORDER BY seq
"""


def storyteller() -> Agent:
    """Answers a short IDEA with one that is larger than a packet may be, to blue-1."""
    agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])

    @agent.on(PacketType.IDEA)
    async def tell(idea: Packet, ctx: HandlerContext) -> None:
        await ctx.emit(idea.payload.model_copy(update={"intent": TEXT}), to="blue-1")

    return agent


def reader(read: list[Packet]) -> Agent:
    """Notes what it is given."""
    agent = Agent("blue-1", role=ROLE, swarm=AGENTS["blue-1"][0])

    @agent.on(PacketType.IDEA)
    async def note(idea: Packet, ctx: HandlerContext) -> None:
        read.append(idea)

    return agent


@asynccontextmanager
async def at_work(house: House, *agents: Agent) -> AsyncIterator[None]:
    """Workers of these agents, over the broker and with the artifact store of the house."""
    async with AsyncExitStack() as stack:
        for agent in agents:
            bus = await house.connect(agent.agent_id)
            stack.push_async_callback(bus.close)
            stop = asyncio.Event()
            worker = Worker(agent, bus, settings=WorkerSettings(database_url=None), artifacts=house.artifacts)
            running = asyncio.create_task(worker.run(stop))
            stack.push_async_callback(asyncio.wait, [running])
            stack.callback(stop.set)
            await worker.ready.wait()
        yield


async def test_a_large_body_goes_from_handler_to_handler_and_its_text_round_the_gate(house: House) -> None:
    read: list[Packet] = []
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    async with house.persister(), house.gate():
        await house.open_session()
        async with at_work(house, storyteller(), reader(read)):
            await house.agents.publish(trigger)

            async def was_read() -> bool:
                return bool(read)

            await until(was_read)
            await until(house.has_come_to("ARCHIVED", read[0].packet_id, "blue-1"))
    assert read[0].payload_as(IdeaPayload).intent == TEXT and read[0].metadata is None
    short, long = await house.pool.fetch(LOGGED)
    assert (long["sender_agent_id"], long["intent"]) == ("red-1", HASH)
    assert long["size"] < 3_000 and short["size"] < 3_000
    assert await house.artifacts.get(HASH) == TEXT.encode()

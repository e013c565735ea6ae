"""The taker of the load with a FastStream middleware that does nothing: what the chain costs."""

from faststream import BaseMiddleware

from apc_agents import Agent, HandlerContext
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import IdeaPayload
from apc_contracts.vocabulary import PacketType
from benchmarks.support import agents

sink = Agent("sentinel-1", role="sentinel", swarm=agents.SWARM, middlewares=(BaseMiddleware,))


@sink.on(PacketType.IDEA)
async def _take(packet: Packet[IdeaPayload], context: HandlerContext) -> None:
    """Do nothing: what is measured is the bus."""

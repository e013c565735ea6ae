"""An agent whose handler writes its own log line and answers: run as a process by test_processes_tell."""

import structlog
from tests.support.traffic import AGENTS, make_idea
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("blue-1", role=ROLE, swarm=AGENTS["blue-1"][0])
log = structlog.get_logger()


@agent.on(PacketType.IDEA)
async def answer(packet: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
    log.info("idea_looked_at")
    if packet.payload.method_id == "fails":
        raise ValueError("the handler's own words")
    return make_idea()

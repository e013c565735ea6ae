"""A worker without queues names the command that registers its agent."""

from typing import Any

from apc_agents import Agent, HandlerContext
from apc_agents.running.service import registration_line
from apc_contracts import Packet, PacketType


def test_the_line_has_what_the_code_declares() -> None:
    agent = Agent("reviewer-2", role="reviewer", swarm="alpha")
    assert registration_line(agent) == "`apc agent add reviewer-2 --role reviewer --swarm alpha`"

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[Any], ctx: HandlerContext) -> None: ...

    @agent.on(PacketType.CLAIM)
    async def doubt(claim: Packet[Any], ctx: HandlerContext) -> None: ...

    assert registration_line(agent).endswith(" --swarm alpha --handles CLAIM,IDEA`")

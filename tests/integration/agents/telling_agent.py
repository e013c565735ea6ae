"""An agent whose handler counts in its state and tells how far it is: run as a process by test_held_emissions."""

from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


@agent.on(PacketType.IDEA)
async def tell(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Tells two others, one after the other."""
    steps = ctx.state["steps"] = ctx.state.get("steps", 0) + 1
    for to in ("blue-1", "sentinel"):
        await ctx.emit(idea.payload.model_copy(update={"intent": f"step {steps}"}), to=to)

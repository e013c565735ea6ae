"""An agent in a process that has no mind: run by test_without_the_mind."""

import sys
from typing import Any

from tests.support.account import note
from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, AgentError, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

assert "apc_minds" not in sys.modules, "the worker has imported the mind before it knows its agent"
sys.modules["apc_minds"] = None  # type: ignore[assignment]  # from now on the import fails

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


@agent.on(PacketType.IDEA)
async def count(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Uses what the SDK itself has, and notes what it has not."""

    async def pay() -> Any:
        return {"receipt": note("payments", str(ctx.idempotency_key("pay")))}

    ctx.state["ideas"] = ctx.state.get("ideas", 0) + 1
    await ctx.once("pay", pay)
    try:
        note("memory", repr(ctx.memory))
    except AgentError as error:
        note("memory", str(error))
    note("tasks", str(ctx.tasks))

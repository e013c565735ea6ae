"""An agent whose handler pays at a service outside, a file here: run as a process by test_effects."""

import os
from typing import Any

from tests.support.account import note
from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Retry
from apc_contracts import IdeaPayload, Packet, PacketType

RETRIES = "RETRIES"
"""Environment: how often the handler asks for another attempt after it has paid."""

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


@agent.on(PacketType.IDEA)
async def pay(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Pays once, however often it runs."""

    async def charge() -> Any:
        return {"receipt": note("payments", str(ctx.idempotency_key("charge")))}

    note("runs", str(await ctx.once("charge", charge)))
    asked = note("retries", "asked")
    if asked <= int(os.environ.get(RETRIES, "0")):
        raise Retry(reason=f"for the {asked}. time")

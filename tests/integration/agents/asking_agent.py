"""An agent whose handlers wait: for a person before it ships, and for an ACK. Run as a process by tests."""

import os
from datetime import timedelta
from typing import Any

from tests.support.account import note
from tests.support.traffic import AGENTS, make_idea
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Retry, Role
from apc_contracts import DecisionPayload, IdeaPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.vocabulary import CommitmentLevel

CHANGED = "CHANGED"
"""Environment: the handler is another one from now on."""
RETRIES = "RETRIES"
"""Environment: how often the handler asks for another attempt after the ACK."""

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


@agent.on(PacketType.TASK_IR)
async def ship(task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
    """Build, ask, and ship what was approved."""
    note("runs", ctx.session_id)

    async def effect(name: str) -> Any:
        return note(name, str(task.packet_id))

    build = await ctx.once("build", lambda: effect("builds"))
    ctx.state["builds"] = ctx.state.get("builds", 0) + 1
    if CHANGED in os.environ:
        await ctx.once("sign", lambda: effect("signatures"))
    approval = await ctx.ask(f"Ship build {build}?", to=Role("release-manager"), timeout=timedelta(hours=1))
    if approval.approved:
        await ctx.once("ship", lambda: effect("shipped"))
    await ctx.emit(
        DecisionPayload(
            decision_id="shipped",
            recommendation=f"{approval.outcome} by {approval.by}: {approval.note}, builds {ctx.state['builds']}",
            priority_distribution={},
            next_actions=(),
            commitment_level=CommitmentLevel.DONE,
        )
    )


@agent.on(PacketType.IDEA)
async def require(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Emit once, however often it runs, and get the ACK each time."""
    required = await ctx.emit(make_idea(), to="sentinel", requires_ack=True)
    if note("acknowledged", str(required.packet_id)) <= int(os.environ.get(RETRIES, "0")):
        raise Retry(reason="once more")

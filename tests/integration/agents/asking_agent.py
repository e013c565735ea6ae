"""An agent whose handlers wait: for a person before it ships, and for an ACK. Run as a process by tests."""

import os
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from pydantic import BaseModel, Field
from tests.support.account import note
from tests.support.traffic import AGENTS, make_idea
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, Approval, HandlerContext, Retry, Role
from apc_contracts import DecisionPayload, IdeaPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.vocabulary import CommitmentLevel

CHANGED = "CHANGED"
"""Environment: the handler is another one from now on."""
TYPED = "TYPED"
"""Environment: the question asks for fields."""
RETRIES = "RETRIES"
"""Environment: how often the handler asks for another attempt after the ACK."""


class Release(BaseModel):
    """What the release manager fills in."""

    share: Decimal = Field(gt=0, le=100, description="In percent.")
    day: date
    channels: list[str] = []


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
    asked = Release if TYPED in os.environ else None
    question = f"Ship build {build}?"
    approval: Approval[Any] = await ctx.ask(
        question, to=Role("release-manager"), timeout=timedelta(hours=1), returns=asked
    )
    if approval.approved:
        await ctx.once("ship", lambda: effect("shipped"))
    filled_in = f", {approval.answer!r}" if approval.answer is not None else ""
    said = f"{approval.outcome} by {approval.by}: {approval.note}, builds {ctx.state['builds']}{filled_in}"
    await ctx.emit(
        DecisionPayload(
            decision_id="shipped",
            recommendation=said,
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

"""An agent whose handler asks before it ships: run as a process by test_approvals."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Role
from apc_contracts import DecisionPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.vocabulary import CommitmentLevel

ACCOUNT = "ACCOUNT"
"""Environment: the folder in which effects and runs are counted."""
CHANGED = "CHANGED"
"""Environment: the handler is another one from now on."""

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


def note(name: str, line: str) -> int:
    """Add a line to a file of the account; return how many there are."""
    path = Path(os.environ[ACCOUNT]) / name
    with path.open("a") as lines:
        lines.write(f"{line}\n")
    return len(path.read_text().splitlines())


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

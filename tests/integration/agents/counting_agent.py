"""An agent whose task counts in the database and then waits for a file: run as a process by test_durable_tasks."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from pydantic import JsonValue
from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext
from apc_agents.clearance import Clearance
from apc_contracts import IdeaPayload, Packet, PacketType, SecurityLevel, parse_response
from apc_minds.actions import ActionContext, ActionExecutor, Effect, ToolCall, ToolRegistry

HANGS_IN_EFFECT = "HANGS_IN_EFFECT"
"""Environment: the first attempt hangs between what it wrote and the record of that, else after it."""
WALK = "walk"
"""The intent that starts WALKS tasks of STEPS steps."""
WALKS, STEPS, STEP_SECONDS = 8, 12, 0.1
GO_ON = "GO_ON"
"""Environment: the file that lets the task end."""

CLEARANCE = Clearance(swarms={swarm: SecurityLevel.USER for swarm, *_ in AGENTS.values()})
tools = ToolRegistry()
agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0], tools=tools, clearance=CLEARANCE)
executor = ActionExecutor(tools)


def may_go_on() -> bool:
    """Return whether the test lets the task end."""
    return Path(os.environ[GO_ON]).exists()


@tools.tool()
async def count_up(call: ToolCall) -> int:
    """Adds a row, once."""

    async def add(effect: Effect) -> JsonValue:
        await effect.connection.execute("INSERT INTO counted (key) VALUES ($1)", effect.key)
        if HANGS_IN_EFFECT in os.environ:
            await call.progress(0.2, "writing")
            await asyncio.Event().wait()
        found: int = await effect.connection.fetchval("SELECT count(*) FROM counted")
        return found

    number = await call.once("count", add)
    await call.progress(0.5, "counted")
    await until(may_go_on, None)
    assert isinstance(number, int)
    return number


@tools.tool()
async def walk(name: str, steps: int, call: ToolCall) -> int:
    """Adds a row for each step, once, however often it is begun."""
    for number in range(steps):

        async def add(effect: Effect) -> JsonValue:
            await effect.connection.execute("INSERT INTO counted (key) VALUES ($1)", effect.key)
            return None

        await call.once(f"{name}-{number}", add)
        await call.progress((number + 1) / steps, f"step {number}")
        await asyncio.sleep(STEP_SECONDS)
    return steps


@tools.tool()
async def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


@agent.on(PacketType.IDEA)
async def act(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Starts two tasks, of which the second needs the result of the first; or many that walk."""
    actions: list[dict[str, Any]] = [
        {
            "action": "walk",
            "type": "tool",
            "execution": "ASYNC",
            "action_id": f"walk_{number}",
            "params": {"name": f"walk_{number}", "steps": STEPS},
            "depends_on": [f"walk_{number - 2}"] if number % 3 == 2 else [],
        }
        for number in range(WALKS)
    ]
    if idea.payload.intent != WALK:
        actions = [
            {"action": "count_up", "type": "tool", "execution": "ASYNC", "action_id": "count"},
            {"action": "double", "type": "tool", "execution": "ASYNC", "params": {"number": "${{results.count}}"}},
        ]
    response = parse_response(json.dumps({"status": "TASK_STARTED", "actions": actions, "stop": True}))
    await executor.run(response, context=ActionContext.of(ctx))

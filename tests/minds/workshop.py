"""Tools and responses for the tests of actions."""

import json
from collections.abc import Callable
from typing import Any

from apc_agents.clearance import Clearance
from apc_contracts import AgentResponse, SecurityLevel, parse_response
from apc_minds.actions import ActionContext, ToolRegistry

CLEARANCE = Clearance(swarms={"tests": SecurityLevel.USER})
"""The test client's sender may lead an agent as far as `user`."""
Action = dict[str, Any]
Respond = Callable[..., AgentResponse]


def tool(action: str, /, **fields: Any) -> Action:
    """Return an action of the type `tool`."""
    return {"action": action, "type": "tool", **fields}


def internal(action: str, /, **fields: Any) -> Action:
    """Return an action of the type `internal`."""
    return {"action": action, "type": "internal", **fields}


def response(*actions: Action, **fields: Any) -> AgentResponse:
    """Return a response with these actions."""
    return parse_response(json.dumps({"status": "EXECUTING", "stop": False, "actions": actions, **fields}))


def in_context(**settings: Any) -> ActionContext:
    """Return a context of an agent of the test."""
    return ActionContext(**{"agent_id": "builder-1", "session_id": "session-1", **settings})


class Workshop:
    """A registry whose tools note what they were called with."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.tools = ToolRegistry()
        register = self.tools.tool

        @register()
        async def note(value: Any = None) -> Any:
            """Notes a value and gives it back."""
            self.calls.append(value)
            return value

        @register()
        async def fail(message: str = "no") -> None:
            self.calls.append(message)
            raise ValueError(message)

        @register(security_level=SecurityLevel.ADMIN)
        async def wipe() -> None:
            self.calls.append("wiped")

        @register()
        async def add(a: int, b: int = 1) -> int:
            self.calls.append((a, b))
            return a + b

"""Which tools of a pydantic-ai agent a packet may trigger: by the level of its sender, and by the tool's own rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

from apc_agents.clearance import SenderRule, lowest
from apc_agents.handling.handler_context import HandlerContext
from apc_contracts.agent.actions import SecurityLevel

_log = structlog.get_logger("apc_agents")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Which senders a tool runs for.

    Args:
        security_level: the lowest level of a sender.
        senders: whose packets may trigger it; default anybody's whose level suffices.
    """

    security_level: SecurityLevel = SecurityLevel.USER
    senders: SenderRule | None = None


NO_RULES: Final[Mapping[str, ToolRule]] = MappingProxyType({})
_DEFAULT: Final = ToolRule()


class Permitted(AbstractCapability[Any]):
    """Shows the model of one run the tools that its packet may trigger, and refuses calls of others."""

    def __init__(self, ctx: HandlerContext, rules: Mapping[str, ToolRule]) -> None:
        self._trigger = ctx.trigger
        self._level = lowest(ctx.trigger.level, ctx.agent.security_level)
        self._rules = rules

    def permits(self, name: str) -> bool:
        """Return whether the packet may trigger this tool."""
        rule = self._rules.get(name, _DEFAULT)
        return rule.security_level.rank <= self._level.rank and self._trigger.may_use(rule.senders)

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools that the model is shown."""
        return [one for one in tool_defs if self.permits(one.name)]

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call, or tell the model that it is not made."""
        if self.permits(call.tool_name):
            return await handler(args)
        sender = self._trigger.senders[0].agent_id
        _log.warning("tool_refused", tool=call.tool_name, sender=sender, level=self._level.value)
        return f"{call.tool_name} is not available for {sender}, whose level is {self._level.value}: it was not called"

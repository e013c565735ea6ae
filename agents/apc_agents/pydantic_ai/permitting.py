"""Which tools of a pydantic-ai agent a packet may trigger: by the level of its sender, and by the tool's own rule."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog
from pydantic import JsonValue
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import ToolDefinition

from apc_agents.clearance import PROVENANCE, SenderRule, lowest
from apc_agents.handling.handler_context import HandlerContext
from apc_contracts.agent import SecurityLevel

_log = structlog.get_logger("apc_agents")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Which senders a tool runs for.

    Args:
        security_level: the lowest level of a sender.
        senders: whose packets may trigger it; default anybody's whose level suffices.
        result_level: give `public` to a tool that fetches text of unknown authors: a run that has seen its result, or
            its error, acts at most at this level from then on.
    """

    security_level: SecurityLevel = SecurityLevel.USER
    senders: SenderRule | None = None
    result_level: SecurityLevel | None = None


NO_RULES: Final[Mapping[str, ToolRule]] = MappingProxyType({})
_DEFAULT: Final = ToolRule()


class Permitted(AbstractCapability[Any]):
    """Shows the model of one run the tools that its packet may trigger, and refuses calls of others."""

    def __init__(self, ctx: HandlerContext, rules: Mapping[str, ToolRule]) -> None:
        self._trigger = ctx.trigger
        self._level = lowest(ctx.trigger.level, ctx.agent.security_level)
        self._rules = rules
        self._results: list[tuple[int, SecurityLevel]] = []
        """The step in which each tool with a result level was called, and that level."""

    def level(self, step: int | None = None) -> SecurityLevel:
        """Return the highest level at which this step may act; None = what follows the run."""
        seen = (level for called, level in self._results if step is None or called < step)
        return lowest(self._level, *seen)

    def begin_turn(self) -> None:
        """Keep what was seen so far: the run that goes on counts its steps from the beginning."""
        self._results = [(-1, level) for _, level in self._results]

    def permits(self, name: str, step: int) -> bool:
        """Return whether the packet may trigger this tool in this step of the run."""
        rule = self._rules.get(name, _DEFAULT)
        return rule.security_level.rank <= self.level(step).rank and self._trigger.may_use(rule.senders)

    @property
    def provenance(self) -> dict[str, JsonValue]:
        """What a packet says that the run has led to."""
        return {PROVENANCE: self._trigger.provenance(self.level())}

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[ToolDefinition]) -> list[ToolDefinition]:
        """Return the tools that the model is shown."""
        return [one for one in tool_defs if self.permits(one.name, ctx.run_step)]

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call, or tell the model that it is not made."""
        if self.permits(call.tool_name, ctx.run_step):
            if (level := self._rules.get(call.tool_name, _DEFAULT).result_level) is not None:
                self._results.append((ctx.run_step, level))
            return await handler(args)
        sender, level = self._trigger.senders[0].agent_id, self.level(ctx.run_step)
        _log.warning("tool_refused", tool=call.tool_name, sender=sender, level=level.value)
        return f"{call.tool_name} is not available for {sender}: the level is {level.value}. It was not called"

"""Tool calls of a pydantic-ai agent that wait for people: all of one model turn are one wait of the handler."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pydantic_ai import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ToolCallPart
from pydantic_core import to_jsonable_python

from apc_agents.emitting.draft import Destination
from apc_agents.errors import AgentError
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.pydantic_ai.marking import Marked
from apc_agents.waiting.approval import Approval
from apc_agents.waiting.inquiry import Pending

APPROVAL_TIMEOUT: Final = timedelta(hours=1)
WAITING: Final = "pydantic_ai_waiting"
"""The key in ctx.state: packet -> revision of the records that its run needs when it goes on."""


@dataclass(frozen=True, slots=True)
class Approvers:
    """Who is asked about tool calls, and for how long; no answer in time is a denial."""

    to: Destination
    timeout: timedelta = APPROVAL_TIMEOUT


class NobodyAsked(AbstractCapability[Any]):
    """Ends a run with a clear error when a tool call waits for people and the agent names none."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults:
        """Raise AgentError."""
        names = ", ".join(sorted({call.tool_name for call in (*requests.approvals, *requests.calls)}))
        raise AgentError(
            f"calls of {names} wait for people, and {self._agent_id} asks nobody: give PydanticAgent "
            'approvers=Approvers(Role("…"))'
        )


class Asking:
    """Asks people about the tool calls of one run that need an approval, or whose result somebody else gives."""

    def __init__(self, ctx: HandlerContext, approvers: Approvers, revision: int, marked: Marked) -> None:
        self._ctx = ctx
        self._approvers = approvers
        self._revision = revision
        self._marked = marked

    async def results(self, requests: DeferredToolRequests) -> DeferredToolResults:
        """End the run of the handler until all calls of this model turn are answered; then return the answers.

        Raises:
            Suspended: the run is over. AgentError: the handler cannot wait here.
        """
        needed = {str(self._ctx.packet.packet_id): self._revision}
        self._ctx.state[WAITING] = {**self._ctx.state.get(WAITING, {}), **needed}
        calls = [*requests.approvals, *requests.calls]
        given = await self._ctx.gather(*(self._asked(call, is_result=call in requests.calls) for call in calls))
        ends: dict[str, Approval] = {call.tool_call_id: end for call, end in zip(calls, given, strict=True)}
        return DeferredToolResults(
            approvals={one.tool_call_id: self._permission(one, ends[one.tool_call_id]) for one in requests.approvals},
            calls={one.tool_call_id: self._result(one, ends[one.tool_call_id]) for one in requests.calls},
        )

    def _asked(self, call: ToolCallPart, *, is_result: bool) -> Pending[Approval]:
        name = self._ctx.agent.agent_id
        text = (
            f"{name} waits for the result of {call.tool_name}: approve with the result as the note"
            if is_result
            else f"May {name} call {call.tool_name}?"
        )
        arguments = to_jsonable_python(call.args_as_dict(), fallback=str)
        content = {"tool": call.tool_name, "tool_call_id": call.tool_call_id, "arguments": arguments}
        return self._ctx.ask(text, to=self._approvers.to, timeout=self._approvers.timeout, content=content)

    def _permission(self, call: ToolCallPart, end: Approval) -> ToolApproved | ToolDenied:
        return ToolApproved() if end.approved else ToolDenied(self._denial(call, end))

    def _result(self, call: ToolCallPart, end: Approval) -> str:
        return self._marked.enclosed(end.note or "done", call.tool_name) if end.approved else self._denial(call, end)

    def _denial(self, call: ToolCallPart, end: Approval) -> str:
        said = f"{call.tool_name} was not called: {end.outcome.value}"
        return said if end.note is None else f"{said}\n{self._marked.enclosed(end.note, call.tool_name)}"

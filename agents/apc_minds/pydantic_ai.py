"""Agents of pydantic-ai on the bus, as they are. Needs the extra `llm`."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, get_args

import orjson
from pydantic import BaseModel, JsonValue

from apc_contracts.errors import ExtraMissing

try:
    import pydantic_ai  # noqa: F401 - the first that needs the extra
except ModuleNotFoundError as error:
    raise ExtraMissing(error) from error

from pydantic_ai import (
    DeferredToolRequests,
    DeferredToolResults,
    NativeOutput,
    PromptedOutput,
    RunContext,
    ToolApproved,
    ToolDenied,
    ToolOutput,
    ToolReturn,
)
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolRetryError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RunUsage
from pydantic_core import to_jsonable_python

from apc_agents.agent import Agent
from apc_agents.clearance import PROVENANCE, Clearance, SenderRule, lowest, say_withheld
from apc_agents.errors import AgentError, AgentInvalid, MemoryUnavailable, Retry
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.handling.inquiry import Approval, Pending
from apc_agents.typed import payload_of, schema_of
from apc_bus.gen_ai import in_tool
from apc_bus.settings import LLMSettings
from apc_bus.telemetry import get_logger
from apc_contracts.agent import SecurityLevel
from apc_contracts.packet import request_of
from apc_minds.context.prompt_assembly import TOOL_SOURCE
from apc_minds.context.store import MemoryContextStore
from apc_minds.joined import Approvers, clearance_within, source_of
from apc_minds.language_model import RECORDS, LLMError, ModelAway, RecordedModel, Recording, spending, traced
from apc_minds.text import DATA_RULE, fenced, new_fence

__all__ = ["Approvers", "PydanticAgent", "ToolRule"]

# Marks what tools of a pydantic-ai agent give as data: it may hold text of unknown authors.


class Marked(AbstractCapability[Any]):
    """Encloses results and errors of tools in the marks of one run."""

    def __init__(self, fence: str) -> None:
        self._fence = fence

    def enclosed(self, text: str, tool: str) -> str:
        """Return the text as data of this tool."""
        return fenced(text, self._fence, {**TOOL_SOURCE, "tool": tool})

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call; what it gives is text."""
        try:
            given = await handler(args)
        except ModelRetry as retry:
            raise ModelRetry(self.enclosed(retry.message, call.tool_name)) from retry
        except ToolRetryError as retry:
            said = retry.tool_retry
            if isinstance(said.content, str):
                said = replace(said, content=self.enclosed(said.content, call.tool_name))
            raise ToolRetryError(said) from retry
        return self.enclosed(_as_text(given.return_value if isinstance(given, ToolReturn) else given), call.tool_name)


def _as_text(given: Any) -> str:
    plain = to_jsonable_python(given, fallback=str)
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


# What a pydantic-ai agent may give: models with `@message`, or nothing.


def message_outputs(agent_id: str, output_type: Any, *, is_asked: bool = False) -> frozenset[type[BaseModel]]:
    """Return the models of an output_type.

    Raises:
        AgentInvalid: a leaf is no decorated model nor None; DeferredToolRequests needs people who are asked.
    """
    models = set()
    for leaf in _leaves(output_type):
        if leaf in (None, type(None)) or (leaf is DeferredToolRequests and is_asked):
            continue
        if leaf is DeferredToolRequests:
            raise AgentInvalid(
                f"agent {agent_id}: the output_type of the pydantic-ai agent has DeferredToolRequests: give "
                'PydanticAgent approvers=Approvers(Role("…")), who are asked'
            )
        if not (isinstance(leaf, type) and issubclass(leaf, BaseModel) and schema_of(leaf)):
            name = getattr(leaf, "__name__", repr(leaf))
            raise AgentInvalid(
                f"agent {agent_id}: the output_type of the pydantic-ai agent has {name}: give models that are "
                'decorated with @message("name/1")'
            )
        models.add(leaf)
    if not models:
        raise AgentInvalid(f'agent {agent_id}: the output_type has no model that is decorated with @message("name/1")')
    return frozenset(models)


def may_defer(output_type: Any) -> bool:
    """Return whether a run with this output_type may end with calls that wait."""
    return any(leaf is DeferredToolRequests for leaf in _leaves(output_type))


def _leaves(output_type: Any) -> Iterator[Any]:
    if isinstance(output_type, ToolOutput):
        yield from _leaves(output_type.output)
    elif isinstance(output_type, NativeOutput | PromptedOutput):
        yield from _leaves(output_type.outputs)
    elif isinstance(output_type, Sequence) and not isinstance(output_type, str):
        for one in output_type:
            yield from _leaves(one)
    elif not isinstance(output_type, type) and get_args(output_type):
        for one in get_args(output_type):
            yield from _leaves(one)
    else:
        yield output_type


# Which tools of a pydantic-ai agent a packet may trigger: by the level of its sender, and by the tool's own rule.

_log = get_logger("apc_minds")


@dataclass(frozen=True, slots=True)
class ToolRule:
    """Which senders a tool runs for.

    ```python
    from apc_minds.pydantic_ai import ToolRule
    from apc_contracts import SecurityLevel

    from_outside = ToolRule(security_level=SecurityLevel.PUBLIC, result_level=SecurityLevel.PUBLIC)
    ```

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
        self._withheld: set[str] = set()
        """Tools that were said to be withheld."""

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
        shown = [one for one in tool_defs if self.permits(one.name, ctx.run_step)]
        withheld = {one.name for one in tool_defs} - {one.name for one in shown} - self._withheld
        if self.level(ctx.run_step) is self._level:  # else the text of a tool has lowered it, not the sender
            self._withheld |= withheld
            say_withheld(withheld, self._trigger, self._level)
        return shown

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


# What makes a run repeatable: answers of the model are found again, tool calls are made once.

NOT_MADE = (ModelRetry, ToolRetryError, CallDeferred, ApprovalRequired)
"""What a tool raises to be called otherwise, or later."""


class AnswersByNumber(Recording):
    """Answers by the input and the number of the request: instructions may tell the time, and differ in each run."""

    def next_key(self, digest: str) -> str:
        """Return the key of the next request."""
        return super().next_key("")

    async def forget_revision(self, revision: int) -> None:
        """Forget the records of all inputs with this number."""
        if revision >= 0:
            await self.store.delete_turns(self.session_id, f"{RECORDS}{revision}/")


class Repeatable(AbstractCapability[Any]):
    """Records the model and the tools of one run."""

    def __init__(
        self, ctx: HandlerContext, recording: Recording, settings: LLMSettings, *, is_traced: bool = False
    ) -> None:
        self._ctx = ctx
        self._is_traced = is_traced
        self._recording = recording
        self._settings = settings
        self._turns = 0

    def begin_turn(self) -> None:
        """Tell the tool calls of a run that goes on from those before: it counts its steps from the beginning."""
        self._turns += 1

    def get_wrapper_model(self, model: Model) -> Model:
        """Return the model whose answers are kept, and found again."""
        return RecordedModel(model if self._is_traced else traced(model), self._recording, self._settings)

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: Any, handler: Any
    ) -> Any:
        """Make the call unless it was made for this input already; what it gives is JSON."""

        async def make() -> Any:
            with in_tool(call.tool_name, call.tool_call_id, self._ctx.agent.agent_id, self._ctx.session_id, NOT_MADE):
                given = await handler(args)
            return to_jsonable_python(given.return_value if isinstance(given, ToolReturn) else given, fallback=str)

        digest = sha256(call.tool_call_id.encode()).hexdigest()[:16]
        step = f"{self._turns}.{ctx.run_step}" if self._turns else str(ctx.run_step)
        return await self._ctx.once(f"tool/{call.tool_name[:100]}/{step}/{digest}", make, not_made=NOT_MADE)


# Tool calls of a pydantic-ai agent that wait for people: all of one model turn are one wait of the handler.

WAITING: Final = "pydantic_ai_waiting"
"""The key in ctx.state: packet -> revision of the records that its run needs when it goes on."""


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


# An existing pydantic-ai agent as an agent on the bus.

ANSWERED: Final = "pydantic_ai_answered"
"""The key in ctx.state: how many inputs of the session were answered."""
AWAY_AFTER = timedelta(seconds=5)
"""When an input is tried again whose model, or memory, does not answer, unless the provider says when."""


class PydanticAgent(Agent):
    """A pydantic-ai agent that joins as it is: an input is its user prompt, its output goes to the input's sender.

    Each input is its own run, without the history of earlier ones. Answers of the model are kept before they are
    used, and each tool call is made once (`ctx.once`): a handler that runs again after a crash asks no model. Tokens
    and cost travel in the outcome into the session budget. A model that does not answer is asked again later; any
    other failure of the run is the handler's.

    A tool is shown and run only for a sender whose level reaches the tool's rule, as those of an LLMAgent: by default
    for the own swarm and for agents with the right `operate`. What a tool gives is marked as data, and lowers the level
    of the rest of the run to the rule's `result_level`. The output carries that level in `metadata.provenance`, so
    that no agent acts above it because of the output. A tool that the provider itself runs, such as a web search, has
    no rule.

    Tool calls that need an approval, and deferred ones, become questions to the approvers: all of one model turn at
    once. The handler ends, and goes on with the last answer, also after days and restarts.

    ```python
    from pydantic_ai import Agent as ModelAgent
    from pydantic_ai.models.test import TestModel

    from apc_minds.pydantic_ai import PydanticAgent

    model = TestModel(custom_output_args={"text": "because"})
    expert = PydanticAgent("expert", ModelAgent(model, output_type=Answer), input=Question)
    async with AgentTestClient(expert) as client:
        assert content_of(await client.send(Question(text="why")), Answer) == Answer(text="because")
    ```

    Args:
        agent_id: as Agent.
        swarm: as Agent; default `agents`.
        rights: as Agent.
        concurrency: as Agent.
        capabilities: as Agent.
        joined: the pydantic-ai agent; its output_type is made of models with `@message`.
        input: the model whose MESSAGEs and requests it takes.
        role: as registered; default the agent_id.
        completes: whether its output ends the task (`ctx.complete`) instead of going to the sender. The output for a
            request (`ctx.request`) is the answer in any case.
        deps: what the run gets as its dependencies.
        settings: time and size limits and prices of answers; default those of the environment.
        tool_rules: by the name of the tool, which senders it runs for; default ToolRule(), the level `user`.
        clearance: the level of each sender; default `user` for the own swarm and for agents with the right `operate`,
            `public` for others.
        approvers: who is asked about tool calls that need an approval, or whose result somebody else gives.
        security_level: the highest at which its tools run, no matter who asks.

    Raises:
        AgentInvalid: as Agent; the output_type has another leaf than models with `@message`, None and, with approvers,
            DeferredToolRequests.
    """

    def __init__(
        self,
        agent_id: str,
        joined: AbstractAgent[Any, Any],
        *,
        input: type[BaseModel],
        role: str | None = None,
        swarm: str = "agents",
        completes: bool = False,
        deps: Any = None,
        settings: LLMSettings | None = None,
        rights: Iterable[str] = (),
        concurrency: int = 1,
        capabilities: Iterable[str] = (),
        tool_rules: Mapping[str, ToolRule] = NO_RULES,
        clearance: Clearance | None = None,
        approvers: Approvers | None = None,
        security_level: SecurityLevel = SecurityLevel.USER,
    ) -> None:
        super().__init__(
            agent_id,
            role=role or agent_id,
            swarm=swarm,
            rights=rights,
            concurrency=concurrency,
            capabilities=capabilities,
            clearance=clearance or clearance_within(swarm),
            security_level=security_level,
        )
        self.joined = joined
        self.completes = completes
        self.settings = settings or LLMSettings()
        self._deps = deps
        self._tool_rules = dict(tool_rules)
        self._approvers = approvers
        self._unasked = [NobodyAsked(agent_id)] if approvers is None else []
        self._outputs = message_outputs(agent_id, joined.output_type, is_asked=approvers is not None)
        self.on(input)(self._handle)

    @property
    def models(self) -> frozenset[type[BaseModel]]:
        """The input and the outputs."""
        return super().models | self._outputs

    async def _handle(self, content: Any, ctx: HandlerContext) -> Any:
        usage, permitted = RunUsage(), Permitted(ctx, self._tool_rules)
        try:
            output = await self._run(content, ctx, permitted, usage)
        except ModelAway as away:
            after = AWAY_AFTER if away.retry_after is None else timedelta(seconds=away.retry_after)
            raise Retry(after, str(away)) from away
        except MemoryUnavailable as away:
            raise Retry(AWAY_AFTER, str(away)) from away
        except (LLMError, AgentError) as failed:
            # It says what happened; the many frames of the run, with their locals, would take a log minutes to print.
            raise failed.with_traceback(None) from None
        finally:
            ctx.add_usage(tokens=usage.total_tokens, cost=float(usage.cost or 0))
        if self.completes and request_of(ctx.packet) is None:
            await ctx.complete(output, metadata=permitted.provenance)
            return None
        ctx.note_provenance(permitted.provenance)
        return output

    async def _run(self, content: BaseModel, ctx: HandlerContext, permitted: Permitted, usage: RunUsage) -> Any:
        answered = int(ctx.state.get(ANSWERED, 0))
        store = MemoryContextStore(ctx.memory, self.agent_id)
        recording = AnswersByNumber(store, ctx.session_id, answered, str(ctx.packet.packet_id))
        fence = await recording.fact("fence", new_fence())
        marked = Marked(fence)
        is_traced = bool(getattr(self.joined, "instrument", None))  # its author has decided what spans tell
        repeatable = Repeatable(ctx, recording, self.settings, is_traced=is_traced)
        run = partial(
            self._joined_run(),
            instructions=DATA_RULE.format(fence=fence),
            deps=self._deps,
            usage=usage,
            conversation_id=ctx.session_id,
            capabilities=[permitted, repeatable, marked, *self._unasked],
        )
        with spending(usage, "output"):
            result = await run(fenced(_written(content), fence, source_of(content, ctx)))
        while self._approvers is not None and isinstance(result.output, DeferredToolRequests):
            # In the handler itself: a wait ends its run, and no other task may stand between.
            results = await Asking(ctx, self._approvers, answered, marked).results(result.output)
            permitted.begin_turn()
            repeatable.begin_turn()
            with spending(usage, "output"):
                result = await run(message_history=result.all_messages(), deferred_tool_results=results)
        await self._forget(ctx, recording)
        return result.output

    def _joined_run(self) -> Callable[..., Awaitable[Any]]:
        """Return the run of the joined agent, which ends when calls wait for people, if anybody is asked."""
        spec: Any = self.joined.output_type
        if self._approvers is None or may_defer(spec):
            return self.joined.run
        return partial(self.joined.run, output_type=[spec, DeferredToolRequests])

    async def _forget(self, ctx: HandlerContext, recording: AnswersByNumber) -> None:
        """Count the input, and forget records that are old, unless a run that waits needs them."""
        answered = int(ctx.state.get(ANSWERED, 0))
        waiting: dict[str, int] = {**ctx.state.get(WAITING, {})}
        waited = waiting.pop(str(ctx.packet.packet_id), None)
        old = answered - self.settings.records
        for revision in {old} if waited is None else {old, min(old, waited)}:
            if revision not in waiting.values():
                await recording.forget_revision(revision)
        ctx.state[ANSWERED] = answered + 1
        if waited is not None:
            ctx.state[WAITING] = waiting


def _written(content: BaseModel) -> str:
    return orjson.dumps(payload_of(content).model_dump(mode="json")["content"]).decode()

"""The loop of an LLM agent: context, prompt, AgentResponse, actions, observations, until it stops.

Source: docs/specification/agents.md section 6; the order is that of the dialogue in the Context Engineering Protocol,
section 5.1.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, TypedDict

import orjson
from pydantic import JsonValue
from pydantic_ai.models import Model
from pydantic_ai.usage import RunUsage

from apc_agents.clearance import highest, lowest, say_withheld
from apc_agents.errors import ActionError
from apc_agents.task_port import Task
from apc_bus.settings import LLMSettings
from apc_contracts.agent import STATUS_ERROR, AgentResponse, ResponseConstraints, SecurityLevel
from apc_minds.action_context import ActionContext, WithheldMemory
from apc_minds.actions import ActionExecutor, ActionReport
from apc_minds.context.polynomial import IS_FOR_MODEL
from apc_minds.context.prompt_assembly import LEVEL
from apc_minds.context.session import ContextSession
from apc_minds.context.turns import Turn, UnknownResource
from apc_minds.language_model import RecordedModel, Recording, ask_for_response, traced
from apc_minds.llm.prompting import Persona, messages_of, system_prompt
from apc_minds.text import ELLIPSIS, RUNNING, ActionProgress, EstimatedTokens, OnProgress, TokenCounter, cut, new_fence
from apc_minds.tools import ActionsRefused, ToolRegistry

# The progress of a task, from which an LLM agent adapts the threshold of its session.
#
# Source: docs/specification/agents.md section 4 (AdaptiveThreshold: task progress, error rate, loop detection).

RECENT_STEPS: Final = 5
"""So many of the newest steps count for the error rate and for a loop."""


class ThresholdSignals(TypedDict):
    """What AdaptiveThreshold is told."""

    task_progress: float
    error_rate: float
    loop_detected: bool


@dataclass(frozen=True, slots=True)
class _Step:
    asked: str
    """SHA-256 of the actions."""
    has_failed: bool


@dataclass(slots=True)
class TaskSignals:
    """The newest steps of one message on its way to an answer."""

    _recent: deque[_Step] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))

    def add(self, response: AgentResponse, report: ActionReport | None) -> None:
        """Take in a step; `report` is None when nothing of it could run."""
        has_failed = report is None or report.status == STATUS_ERROR
        self._recent.append(_Step(_asked(response), has_failed))

    def told(self, *budget_used: float) -> ThresholdSignals:
        """Return the signals; the progress is the largest share of a budget that was used."""
        return {
            "task_progress": min(1.0, max(budget_used, default=0.0)),
            "error_rate": sum(step.has_failed for step in self._recent) / max(1, len(self._recent)),
            "loop_detected": self._is_loop(),
        }

    def _is_loop(self) -> bool:
        """Return whether the newest step asked for what a recent one had asked for already."""
        *before, newest = self._recent or [None]
        return newest is not None and newest.asked in {step.asked for step in before if step is not None}


def _asked(response: AgentResponse) -> str:
    asked = [[action.type, action.action, action.params] for action in response.walk()]
    return sha256(orjson.dumps(asked, default=str, option=orjson.OPT_SORT_KEYS)).hexdigest()


OBSERVATION_SHARE: Final = 0.25
"""The share of the longest turn that the observations of one step may take; the rest of them is cut off."""
RECALLED_FRAME: Final = 40
"""Tokens of an observation that are not the text of the turn that it recalls."""
TASKS_TOLD: Final = 10
TASKS_READ: Final = 100
"""Newest tasks of a session among which those of the compartment are looked for."""
TASKS_TOLD_LENGTH: Final = 4_000
"""Characters of what a model is told of the session's tasks."""
TOLD_FORMATS: Final = ("text", "json", "markdown")
"""Formats of a response that a packet may ask for; any other word of it would be a word in the instructions."""
NO_RESPONSE: Final = "(no response)"

OnChange = Callable[[ContextSession], Awaitable[None]]
"""Told whenever a turn was added."""


async def _unheard(session: ContextSession) -> None:
    """Ignore an observation: nobody listens."""


@dataclass(frozen=True, slots=True)
class MessageExchange:
    """What came of one message.

    Attributes:
        response: the answer.
        status: that of the AgentResponse.
        steps: how often the model was asked for a response.
        usage: tokens, and their price where it is known.
        turn: the assistant's turn.
        is_cut_short: whether the budget ended it, not the model.
        task_ids: tasks that were started and go on.
        turns: what was said, and what came of the actions, from the message to the answer.
    """

    response: str
    status: str
    steps: int
    usage: RunUsage
    turn: Turn
    is_cut_short: bool = False
    task_ids: tuple[str, ...] = ()
    turns: tuple[Turn, ...] = ()

    @property
    def cost(self) -> float:
        """In USD, as far as the price is known."""
        return float(self.usage.cost or 0)


class Mind:
    """A model with a persona and tools. It changes the session that it is given; the caller saves it, or not.

    Args:
        model: of pydantic-ai.
        tools: what its actions may call; default none.
        persona: who it is for its model.
        settings: the bounds of its answers; default those of the environment.
        counter: counts the tokens of a text; default an estimate.
    """

    def __init__(
        self,
        model: Model,
        *,
        tools: ToolRegistry | None = None,
        persona: Persona | None = None,
        settings: LLMSettings | None = None,
        counter: TokenCounter | None = None,
    ) -> None:
        self.model = model
        self.tools = tools or ToolRegistry()
        self.persona = persona or Persona()
        self.settings = settings or LLMSettings()
        self.counter = counter or EstimatedTokens()
        self.executor = ActionExecutor(self.tools)

    def recorded(self, recording: Recording, on_progress: OnProgress | None = None) -> RecordedModel:
        """Return the model as it is asked about one packet or message.

        Args:
            recording: where the answers are kept.
            on_progress: told of the response as it comes.
        """
        return RecordedModel(traced(self.model), recording, self.settings, on_progress)

    async def answer(
        self,
        session: ContextSession,
        message: str,
        *,
        actions: ActionContext,
        recording: Recording,
        usage: RunUsage,
        required: ResponseConstraints | None = None,
        remembered: Mapping[str, JsonValue] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        on_change: OnChange = _unheard,
        on_progress: OnProgress | None = None,
    ) -> MessageExchange:
        """Take a message in, think and act until the model stops, and add its answer to the session.

        Args:
            session: changed as it goes; what raises leaves it half way: drop it then.
            actions: what the actions run in.
            recording: where the answers are kept, and found when all of this runs again.
            usage: grows by what was spent, even if this raises.
            required: what the response must be like; told to the model, and sent back until it is.
            remembered: what the model is told that it has kept.
            metadata: of the user's turn.
            on_change: told whenever a turn was added.
            on_progress: told of the response and the actions as they come; a person waits then, and takes prose too.

        Raises:
            ContextError: the message cannot be taken. LLMError: there is no answer.
            EmitUnconfirmed, StateError: as the executor; let them end the handler.
        """
        asked = await session.add_user_turn(message, metadata)
        await on_change(session)
        self._say_withheld(actions)
        tasks = await recording.fact("tasks", await _told_tasks(actions, self.tools))
        fence = await recording.fact("fence", new_fence())
        told = (recording, usage, required, remembered, tasks, fence, on_change)
        run = _Thought(self, session, actions, *told, [asked], on_progress)
        run.actions = replace(actions, recall=run.recall)
        return await run.until_stopped()

    def _say_withheld(self, actions: ActionContext) -> None:
        if actions.trigger is not None:
            told = {tool["name"] for tool in self.tools.described(actions.security_level, actions.trigger)}
            say_withheld(self.tools.tools.keys() - told, actions.trigger, actions.security_level)


@dataclass(slots=True)
class _Thought:
    """One message on its way to an answer."""

    mind: Mind
    session: ContextSession
    actions: ActionContext
    recording: Recording
    usage: RunUsage
    required: ResponseConstraints | None
    remembered: Mapping[str, JsonValue] | None
    tasks: str
    fence: str
    on_change: OnChange
    turns: list[Turn]
    on_progress: OnProgress | None = None
    steps: int = 0
    acted: int = 0
    task_ids: tuple[str, ...] = ()
    is_lowered: bool = False
    """Whether text of a lower level than the caller's is in the window."""
    signals: TaskSignals = field(default_factory=TaskSignals)

    async def until_stopped(self) -> MessageExchange:
        """Take steps until there is an answer; the session's threshold follows the task and is restored at the end."""
        at_rest, limit = self.session.threshold, self.session.message_limit
        exchange = await self._go_on(limit)
        await self.session.update_threshold(**at_rest.to_document())
        if self.session.config.auto_compress and await self.session.compress_if_needed():
            await self.on_change(self.session)
        return exchange

    async def recall(self, turn: str, start: int, level: SecurityLevel) -> JsonValue:
        """Return an earlier turn from a character on, as much of it as an observation takes. Raises ActionError."""
        try:
            kept = await self.session.recall(turn)
        except UnknownResource as unknown:
            raise ActionError(f"there is no turn {turn!r}: the newest is {self.turns[-1].resource_id}") from unknown
        level = highest(level, self.actions.security_level)  # a response may state a lower one than its run has
        of = SecurityLevel(str(kept.metadata.get(LEVEL, level)))
        if of.rank < level.rank:
            raise ActionError(f"{turn} holds text of the level {of}, and this runs at {level}: call again what gave it")
        rest = kept.content[start:]
        part = cut(rest, max(16, self._observed_tokens - RECALLED_FRAME), self.mind.counter)
        given: dict[str, JsonValue] = {"turn": turn, "role": kept.role.value, "text": part}
        return given if part == rest else given | {"next": start + len(part.removesuffix(ELLIPSIS))}

    @property
    def _observed_tokens(self) -> int:
        return int(self.session.message_limit * OBSERVATION_SHARE)

    async def _go_on(self, response_limit: int) -> MessageExchange:
        settings = self.mind.settings
        while True:
            await self._feed()
            self._lower()
            response = await self._ask(response_limit)
            self.steps += 1
            if not response.actions and (response.stop or response.response):
                return await self._ended(response)
            report = await self._act(response)
            self.signals.add(response, report)
            if report is not None and report.stop:
                return await self._ended(response)
            if self.steps >= settings.max_steps:
                return await self._ended(response, f"{self.steps} steps")
            if settings.message_tokens is not None and self.usage.total_tokens >= settings.message_tokens:
                return await self._ended(response, f"{self.usage.total_tokens} tokens")

    async def _feed(self) -> None:
        """Tell the threshold how the task goes, before the model is told how long its answer may be."""
        settings = self.mind.settings
        used = [self.steps / settings.max_steps]
        if settings.message_tokens:
            used.append(self.usage.total_tokens / settings.message_tokens)
        await self.session.update_threshold(**self.signals.told(*used))

    def _lower(self) -> None:
        """Lower the level to that of the least trusted text in the window; nothing read there is remembered."""
        marks = (turn.metadata.get(LEVEL) for turn in self.session.turns_for_model())
        level = lowest(self.actions.security_level, *(SecurityLevel(str(one)) for one in marks if one is not None))
        if level is not self.actions.security_level:
            self.actions = replace(self.actions, security_level=level, memory=WithheldMemory(level))
            self.is_lowered = True

    def _levelled(self, response: AgentResponse | None = None) -> dict[str, JsonValue]:
        """Return the metadata of a turn that comes of text of a lower level, or holds results of one."""
        called = () if response is None else response.walk()
        tools = (self.mind.tools.find(action.type, action.action) for action in called)
        levels = [tool.result_level for tool in tools if tool is not None and tool.result_level is not None]
        if not levels and not self.is_lowered:
            return {}
        return {LEVEL: lowest(self.actions.security_level, *levels).value}

    async def _ask(self, response_limit: int) -> AgentResponse:
        mind, session = self.mind, self.session
        instructions = system_prompt(
            session,
            mind.persona,
            mind.tools,
            self.actions.security_level,
            fence=self.fence,
            can_emit=self.actions.emit is not None,
            trigger=self.actions.trigger,
            constraints=_told_constraints(self.required),
        )
        return await ask_for_response(
            mind.recorded(self.recording, self.on_progress),
            instructions,
            messages_of(session.turns_for_model(), self.fence, remembered=self.remembered, tasks=self.tasks),
            settings=mind.settings,
            usage=self.usage,
            counter=mind.counter,
            response_limit=min(session.message_limit, response_limit),
            required=self.required,
            takes_prose=self.on_progress is not None,
        )

    async def _act(self, response: AgentResponse) -> ActionReport | None:
        """Run the actions and tell the model what came of them; None when nothing could run."""
        if not response.actions:
            await self._refuse(response, "there was neither an action nor a response")
            return None
        names = [action.action for action in response.walk()]
        self._show_actions(names, [RUNNING] * len(names))
        try:
            report = await self.mind.executor.run(response, context=self.actions)
        except ActionsRefused as refused:
            self._show_actions(names, ["REFUSED"] * len(names))
            await self._refuse(response, str(refused))
            return None
        self._show_actions(names, [str(seen.status) for seen in report.observations])
        self.acted += len(names)
        self.actions = replace(self.actions, results={**self.actions.results, **report.results})
        self.task_ids += tuple(report.task_ids.values())
        pairs = zip(report.observations, report.response.walk(), strict=True)
        await self._observe(response, [{**seen.to_document(), "params": action.params} for seen, action in pairs])
        return report

    def _show_actions(self, names: Sequence[str], statuses: Sequence[str]) -> None:
        if self.on_progress is not None:
            for number, (name, status) in enumerate(zip(names, statuses, strict=True), self.acted):
                self.on_progress(ActionProgress(number, name, status))

    async def _refuse(self, response: AgentResponse, why: str) -> None:
        """Tell the model what is wrong with its answer; it may name what stands in the prompt alone."""
        await self._observe(response, [{"status": STATUS_ERROR, "error": why}], {IS_FOR_MODEL: True})

    async def _observe(
        self,
        response: AgentResponse,
        observations: Sequence[Mapping[str, Any]],
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> None:
        text = orjson.dumps(observations, default=str).decode()
        asked = sha256(response.model_dump_json().encode()).hexdigest()
        text = cut(text, self._observed_tokens, self.mind.counter)
        text = await self.recording.fact(f"observed/{self.steps}/{asked}", text)
        turn = await self.session.add_tool_turn(
            text, {"step": self.steps, **self._levelled(response), **(metadata or {})}
        )
        self.turns.append(turn)
        await self.on_change(self.session)

    async def _ended(self, response: AgentResponse, spent: str | None = None) -> MessageExchange:
        text = response.response or (NO_RESPONSE if spent is None else f"(stopped after {spent}, without an answer)")
        thoughts: list[JsonValue] = [thought.model_dump(mode="json") for thought in response.thoughts]
        turn = await self.session.add_assistant_turn(
            text, {"status": response.status, "thoughts": thoughts, **self._levelled(response)}
        )
        self.turns.append(turn)
        await self.on_change(self.session)
        return MessageExchange(
            text, response.status, self.steps, self.usage, turn, spent is not None, self.task_ids, tuple(self.turns)
        )


def _told_constraints(required: ResponseConstraints | None) -> list[str]:
    sentences = []
    if required is not None and required.max_length is not None:
        sentences.append(f"The response has at most {required.max_length} characters.")
    if required is not None and required.format in TOLD_FORMATS:
        sentences.append(f"The response is written as {required.format}.")
    return sentences


async def _told_tasks(actions: ActionContext, tools: ToolRegistry) -> str:
    """Return the newest tasks of the session and compartment as JSON, with their results; empty when there are none.

    Of a task whose tool has a result_level below that of the caller only the status is told.
    """
    if actions.tasks is None:
        return ""
    tasks = await actions.tasks.list(agent_id=actions.agent_id, session_id=actions.session_id, limit=TASKS_READ)
    own = [task for task in tasks if task.spec.compartment == actions.compartment][:TASKS_TOLD]
    events = [_told_task(task, actions.security_level, tools) for task in own]
    return orjson.dumps(events).decode()[:TASKS_TOLD_LENGTH] if events else ""


def _told_task(task: Task, level: SecurityLevel, tools: ToolRegistry) -> dict[str, JsonValue]:
    tool = tools.find(task.spec.type, task.spec.action)
    event = task.event()
    if tool is not None and tool.result_level is not None and tool.result_level.rank < level.rank:
        return {name: event[name] for name in ("task_id", "action_id", "action", "status")}
    return {**event, "result": task.result}

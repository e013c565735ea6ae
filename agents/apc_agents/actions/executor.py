"""Runs the actions of a response."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from apc_agents.actions.action_context import ActionContext, WithheldMemory, key_of
from apc_agents.actions.checking import CheckedAction, CheckedResponse, check_response, params_problems
from apc_agents.actions.verbs import STOP
from apc_agents.clearance import lowest
from apc_agents.tasks.store import NewTask, TaskSpec, TaskStore
from apc_agents.tools import (
    KnowledgeScope,
    ReadKnowledge,
    ReferenceUnknown,
    ToolCall,
    ToolFailed,
    ToolRegistry,
    ValueUnserialisable,
    invoke,
)
from apc_agents.variable_references import lookup, references_in, substitute
from apc_contracts.agent import (
    STATUS_ERROR,
    STATUS_SUCCESS,
    STATUS_TASK_STARTED,
    Action,
    ActionType,
    AgentResponse,
    Execution,
    SecurityLevel,
)

# What became of the actions of a response.


class ObservationStatus(StrEnum):
    """How an action ended, or that it goes on as a task."""

    SUCCESS = STATUS_SUCCESS
    ERROR = STATUS_ERROR
    TASK_STARTED = STATUS_TASK_STARTED
    CANCELLED = "CANCELLED"
    """It never ran, because something that it needed did not succeed."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What the agent sees of one action. `error` is also the reason of a cancellation."""

    action_id: str
    action: str
    status: ObservationStatus
    result: JsonValue = None
    error: str | None = None
    task_id: str | None = None

    def to_document(self) -> dict[str, JsonValue]:
        """Return it as JSON, without empty parts."""
        document: dict[str, JsonValue] = {"action_id": self.action_id, "action": self.action, "status": self.status}
        if self.status is ObservationStatus.SUCCESS:
            document["result"] = self.result
        if self.error is not None:
            document["error"] = self.error
        if self.task_id is not None:
            document["task_id"] = self.task_id
        return document


@dataclass(frozen=True, slots=True)
class ActionReport:
    """One observation for each action, in the order of the document, sub-actions after their action.

    `response` is the response as it was carried out: with the task_ids, and with the status TASK_STARTED if there
    are any. `stop` says that the response, or one of its actions, ends the loop.
    """

    response: AgentResponse
    observations: tuple[Observation, ...]
    stop: bool

    @property
    def status(self) -> str:
        """ERROR when an action failed or was cancelled, else TASK_STARTED when one goes on, else SUCCESS."""
        found = {observation.status for observation in self.observations}
        if found & {ObservationStatus.ERROR, ObservationStatus.CANCELLED}:
            return STATUS_ERROR
        return STATUS_TASK_STARTED if ObservationStatus.TASK_STARTED in found else STATUS_SUCCESS

    @property
    def results(self) -> dict[str, JsonValue]:
        """The results by action_id, for `ActionContext(results=...)` of the next response."""
        return {one.action_id: one.result for one in self.observations if one.status is ObservationStatus.SUCCESS}

    @property
    def task_ids(self) -> dict[str, str]:
        """The tasks that were started, by action_id."""
        return {one.action_id: one.task_id for one in self.observations if one.task_id is not None}


def carried_out(response: AgentResponse, task_ids: Mapping[int, str]) -> AgentResponse:
    """Return the response with the task_ids of its actions, whose places count `response.walk()` from 0."""
    if not task_ids:
        return response
    places = iter(range(sum(1 for _ in response.walk())))

    def marked(action: Action) -> Action:
        changes: dict[str, Any] = {"task_id": task_ids.get(next(places))}
        changes["sub_actions"] = tuple(map(marked, action.sub_actions))
        return action.model_copy(update=changes)

    actions = tuple(map(marked, response.actions))
    return response.model_copy(update={"status": STATUS_TASK_STARTED, "actions": actions, "schema_version": None})


class ActionExecutor:
    """Runs the actions of responses with the tools of a registry."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._registry = registry

    async def run(self, response: AgentResponse, *, context: ActionContext) -> ActionReport:
        """Check everything, then run the actions one after the other.

        An ASYNC action becomes a task; its observation has the task_id. A handler that runs again after a crash finds
        the task that it started before, whatever it answers then.

        SYNC actions run in the order of the document, as far as depends_on allows. An action that fails is an
        observation, not an exception; what needs it is cancelled with a reason.

        Raises:
            ActionsRefused: something in it cannot run; nothing has run.
            EmitUnconfirmed, StateError: let them end the handler: the worker runs it again.
        """
        checked = check_response(response, self._registry, context)
        run = _ResponseRun(checked, context, context.new_origin(), self._registry.read_knowledge)
        for action in checked.actions:
            run.observed[action.planned.action_id] = await run.observe(action)
        return run.report(response)


@dataclass(slots=True)
class _ResponseRun:
    """One response while it runs."""

    checked: CheckedResponse
    context: ActionContext
    origin: UUID
    read_knowledge: ReadKnowledge | None
    observed: dict[str, Observation] = field(default_factory=dict)
    levels: dict[str, SecurityLevel] = field(default_factory=dict)
    """The level of each result: what holds it in its params runs at most there."""

    async def observe(self, action: CheckedAction) -> Observation:
        planned = action.planned
        failed = next((name for name in planned.needs if not self._went_well(name)), None)
        if failed is not None:
            return self._observation(action, ObservationStatus.CANCELLED, error=self._why_cancelled(failed))
        level = self._level(action)
        if action.runnable.security_level.rank > level.rank:
            why = f"it needs the security_level {action.runnable.security_level}, and its params hold text of {level}"
            return self._observation(action, ObservationStatus.ERROR, error=why)
        self.levels[planned.action_id] = lowest(level, action.runnable.result_level or level)
        if planned.action.execution is Execution.ASYNC and self.context.tasks is not None:
            return await self._start(action, self.context.tasks, level)
        try:
            params = self._params(action)
            result = await invoke(action.runnable, params, self._given(action, level))
        except (ReferenceUnknown, ToolFailed) as error:
            return self._observation(action, ObservationStatus.ERROR, error=str(error))
        return self._observation(action, ObservationStatus.SUCCESS, result=result)

    async def _start(self, action: CheckedAction, tasks: TaskStore, level: SecurityLevel) -> Observation:
        planned, checked = action.planned, self.checked
        results = {**self.checked.earlier, **self._results()}
        problems = params_problems(planned.action, "params", action.runnable, checked.variables, results)
        if problems:
            return self._observation(action, ObservationStatus.ERROR, error=str(problems[0]))
        needed = {name: self.observed[name].task_id for name in planned.needs}
        awaited = {name: UUID(started) for name, started in needed.items() if started is not None}
        used = list(references_in(dict(planned.action.params)))
        spec = TaskSpec(
            action_id=planned.action_id,
            action=planned.action.action,
            type=planned.action.type,
            params=planned.action.params,
            variables={one.head: checked.variables[one.head] for one in used if one.root == "variables"},
            results={one.head: results[one.head] for one in used if one.root == "results" and one.head in results},
            awaited=awaited,
            security_level=level,
            knowledge=checked.knowledge,
            display=planned.action.display,
            origin=self.context.task_origin,
            announce_to=self.context.announce_to,
            compartment=self.context.compartment,
        )
        task_id = key_of(self.origin, planned.action_id)
        new = NewTask(task_id, self.context.agent_id, self.context.session_id, spec, tuple(awaited.values()))
        try:
            kept = await tasks.add(new)
        except ValueUnserialisable as error:
            return self._observation(action, ObservationStatus.ERROR, error=str(error))
        return self._observation(action, ObservationStatus.TASK_STARTED, task_id=str(kept.task_id))

    def report(self, response: AgentResponse) -> ActionReport:
        in_order = sorted(self.checked.actions, key=lambda action: action.planned.position)
        observations = tuple(self.observed[action.planned.action_id] for action in in_order)
        task_ids = {place: one.task_id for place, one in enumerate(observations) if one.task_id is not None}
        return ActionReport(carried_out(response, task_ids), observations, response.stop or self._was_stopped())

    def _params(self, action: CheckedAction) -> Mapping[str, JsonValue]:
        """Return the params with everything substituted. Raises ReferenceUnknown, ToolFailed."""
        results = {**self.checked.earlier, **self._results()}
        params = substitute(dict(action.planned.action.params), lookup(self.checked.variables, results))
        problems = action.runnable.problems_of(params, "params")
        if problems:
            raise ToolFailed(str(problems[0]))
        return dict(params)

    def _results(self) -> dict[str, JsonValue]:
        return {name: one.result for name, one in self.observed.items() if one.status is ObservationStatus.SUCCESS}

    def _level(self, action: CheckedAction) -> SecurityLevel:
        """Return the level of the response, or the lowest of the results that its params hold."""
        used = references_in(dict(action.planned.action.params))
        found = (self.levels.get(one.head) for one in used if one.root == "results")
        return lowest(self.checked.level, *(level for level in found if level is not None))

    def _given(self, action: CheckedAction, level: SecurityLevel) -> Mapping[type, object]:
        context, action_id = self.context, action.planned.action_id
        if level is not self.checked.level:
            context = replace(context, security_level=level, memory=WithheldMemory(level))
        call = ToolCall(
            action_id=action_id,
            agent_id=context.agent_id,
            session_id=context.session_id,
            security_level=level,
            key=key_of(self.origin, action_id),
            scope=KnowledgeScope(self.checked.knowledge, self.read_knowledge) if action.runnable.reads else None,
            of_handler=context.once,
        )
        return {ToolCall: call, ActionContext: context}

    def _went_well(self, name: str) -> bool:
        return self.observed[name].status in (ObservationStatus.SUCCESS, ObservationStatus.TASK_STARTED)

    def _why_cancelled(self, name: str) -> str:
        needed = self.observed[name]
        how = "failed" if needed.status is ObservationStatus.ERROR else "was cancelled"
        return f"it needs {name}, which {how}: {needed.error}"

    def _was_stopped(self) -> bool:
        return any(
            action.planned.action.type is ActionType.INTERNAL
            and action.planned.action.action == STOP
            and self.observed[action.planned.action_id].status is ObservationStatus.SUCCESS
            for action in self.checked.actions
        )

    def _observation(
        self,
        action: CheckedAction,
        status: ObservationStatus,
        *,
        result: JsonValue = None,
        error: str | None = None,
        task_id: str | None = None,
    ) -> Observation:
        return Observation(action.planned.action_id, action.planned.action.action, status, result, error, task_id)

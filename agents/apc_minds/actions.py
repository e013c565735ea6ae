"""Actions: what an LLM agent answers, carried out with its tools (docs/specification/agents.md section 5).

`ToolRegistry` holds the tools, `ActionExecutor` runs an AgentResponse in an `ActionContext` and reports one
`Observation` for each action.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from apc_agents.clearance import Trigger, lowest
from apc_agents.errors import ActionError, ValueUnserialisable
from apc_agents.json_values import json_form
from apc_agents.task_port import Effect, NewTask, TaskSpec, TaskStore
from apc_contracts.agent import (
    STATUS_ERROR,
    STATUS_SUCCESS,
    STATUS_TASK_STARTED,
    Action,
    ActionType,
    AgentResponse,
    Execution,
    ResponseContext,
    SecurityLevel,
)
from apc_minds.action_context import STOP, VERBS, ActionContext, ActionMemory, StateMemory, WithheldMemory, key_of
from apc_minds.tasks.references import Reference, lookup, references_in, substitute
from apc_minds.tools import (
    ActionsRefused,
    KnowledgeOutOfScope,
    KnowledgeScope,
    Problem,
    ReadKnowledge,
    ReferenceUnknown,
    Runnable,
    Script,
    TaskLost,
    TaskUnknown,
    Tool,
    ToolCall,
    ToolFailed,
    ToolInvalid,
    ToolRegistry,
    invoke,
)

# The order in which the actions of a response run, worked out before anything runs.
#
# An action waits for those that it names in depends_on, each with all its sub-actions; for the action that it is a
# sub-action of; and for those whose results its params refer to.


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """An action with its place in the response; `needs` are the action_ids that must have succeeded."""

    action: Action
    action_id: str
    position: int
    path: str
    needs: tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """The actions in the order in which they run, or why they cannot."""

    actions: list[PlannedAction] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Node:
    """An action on the way to its place; `inner` are its sub-actions at every level."""

    action: Action
    action_id: str
    position: int
    path: str
    outer: "tuple[_Node, ...]"
    inner: "list[_Node]" = field(default_factory=list)


def make_plan(response: AgentResponse, earlier: Collection[str] = ()) -> Plan:
    """Return the plan of a response.

    `earlier` are the action_ids of former responses whose results may be referred to.
    """
    nodes: list[_Node] = []
    for number, action in enumerate(response.actions):
        _collect(action, f"actions[{number}]", (), nodes)
    plan = Plan()
    by_id = _by_id(nodes, plan.problems)
    needs = {node.action_id: _needs(node, by_id, earlier, plan.problems) for node in nodes}
    if plan.problems:
        return plan
    try:
        order = _ordered(nodes, needs)
    except CycleError as error:
        cycle: list[str] = error.args[1]
        first = min((by_id[name] for name in cycle), key=lambda node: node.position)
        plan.problems.append(Problem(f"{first.path}.depends_on", f"a cycle: {' needs '.join(reversed(cycle))}"))
        return plan
    plan.actions = [
        PlannedAction(node.action, node.action_id, node.position, node.path, tuple(needs[node.action_id]))
        for node in order
    ]
    plan.problems.extend(_waiting_now(order, needs, by_id))
    return plan


def _collect(action: Action, path: str, outer: tuple[_Node, ...], nodes: list[_Node]) -> None:
    position = len(nodes)
    node = _Node(action, action.action_id or f"action_{position + 1}", position, path, outer)
    nodes.append(node)
    for ancestor in outer:
        ancestor.inner.append(node)
    for number, sub_action in enumerate(action.sub_actions):
        _collect(sub_action, f"{path}.sub_actions[{number}]", (*outer, node), nodes)


def _by_id(nodes: Sequence[_Node], problems: list[Problem]) -> dict[str, _Node]:
    by_id: dict[str, _Node] = {}
    for node in nodes:
        other = by_id.setdefault(node.action_id, node)
        if other is not node:
            named = other if node.action.action_id is None else node
            problems.append(Problem(f"{named.path}.action_id", f"{node.action_id!r} is taken: choose another"))
    return by_id


def _needs(
    node: _Node, by_id: Mapping[str, _Node], earlier: Collection[str], problems: list[Problem]
) -> dict[str, None]:
    """Return the action_ids that a node waits for, in a fixed order."""
    needs = {outer.action_id: None for outer in node.outer[-1:]}
    for number, name in enumerate(node.action.depends_on):
        needed = by_id.get(name)
        if needed is None:
            message = f"no action of this response has the id {name!r}; its ids are {', '.join(by_id)}"
            problems.append(Problem(f"{node.path}.depends_on[{number}]", message))
            continue
        needs[name] = None
        if needed not in node.outer:
            needs.update((inner.action_id, None) for inner in needed.inner)
    try:
        for reference in references_in(dict(node.action.params)):
            if reference.root == "results" and reference.head in by_id:
                needs[reference.head] = None
            elif reference.root == "results" and reference.head not in earlier:
                ids = ", ".join([*by_id, *sorted(earlier)])
                raise ReferenceUnknown(str(reference), f"no such action; known are {ids}")
    except ReferenceUnknown as error:
        problems.append(Problem(f"{node.path}.params", str(error)))
    return needs


def _ordered(nodes: Sequence[_Node], needs: Mapping[str, Mapping[str, None]]) -> list[_Node]:
    """Return each after what it needs; of those that could run, the first of the document. Raises CycleError."""
    sorter = TopologicalSorter({name: needed.keys() for name, needed in needs.items()})
    sorter.prepare()
    positions = {node.action_id: node.position for node in nodes}
    ready: list[int] = []
    order: list[_Node] = []
    while sorter.is_active():
        for name in sorter.get_ready():
            heapq.heappush(ready, positions[name])
        node = nodes[heapq.heappop(ready)]
        order.append(node)
        sorter.done(node.action_id)
    return order


def _waiting_now(
    order: Sequence[_Node], needs: Mapping[str, Mapping[str, None]], by_id: Mapping[str, _Node]
) -> list[Problem]:
    """Return the actions that run now: SYNC ones; a task ends later."""
    return [
        Problem(
            f"{node.path}.execution", f"it is SYNC and needs {name!r}, which is ASYNC and ends later: make it ASYNC"
        )
        for node in order
        if node.action.execution is Execution.SYNC
        for name in needs[node.action_id]
        if by_id[name].action.execution is Execution.ASYNC
    ]


@dataclass(frozen=True, slots=True)
class CheckedAction:
    """An action that may run, and what runs it."""

    planned: PlannedAction
    runnable: Runnable


@dataclass(frozen=True, slots=True)
class CheckedResponse:
    """The actions in the order in which they run, and what holds for all of them."""

    actions: tuple[CheckedAction, ...]
    level: SecurityLevel
    knowledge: tuple[str, ...]
    variables: Mapping[str, JsonValue]
    earlier: Mapping[str, JsonValue]
    """Results of earlier responses, without those whose action_id this response gives to its own action."""


def check_response(response: AgentResponse, registry: ToolRegistry, context: ActionContext) -> CheckedResponse:
    """Return what is to be run.

    Raises:
        ActionsRefused: with every problem that was found.
    """
    stated = response.context or ResponseContext()
    problems = [*_above_level(stated, context), *_out_of_reach(stated, context)]
    variables = _variables(stated, context, problems)
    plan = make_plan(response, context.results)
    problems.extend(plan.problems)
    own = {planned.action_id for planned in plan.actions}
    earlier = {name: result for name, result in context.results.items() if name not in own}
    level = stated.security_level or context.security_level
    checked = []
    for planned in plan.actions:
        runnable = _runnable(planned, registry, problems)
        if runnable is None:
            continue
        if runnable.security_level.rank > level.rank:
            message = f"{planned.action.action!r} needs the security_level {runnable.security_level}, this is {level}"
            problems.append(Problem(f"{planned.path}.action", message))
        if context.trigger is not None and not context.trigger.may_use(runnable.senders):
            message = f"{planned.action.action!r} may not be triggered by {_chain(context.trigger)}"
            problems.append(Problem(f"{planned.path}.action", message))
        if planned.action.execution is Execution.ASYNC and context.tasks is None:
            message = "this agent runs no tasks: leave out ASYNC, or give ActionContext(tasks=...)"
            problems.append(Problem(f"{planned.path}.execution", message))
        place = f"{planned.path}.params"
        problems.extend(params_problems(planned.action, place, runnable, variables, earlier))
        checked.append(CheckedAction(planned, runnable))
    if problems:
        raise ActionsRefused(problems)
    return CheckedResponse(tuple(checked), level, stated.knowledge_relics, variables, earlier)


def _chain(trigger: Trigger) -> str:
    return " for ".join(sender.agent_id for sender in trigger.senders)


def _above_level(stated: ResponseContext, context: ActionContext) -> list[Problem]:
    level = stated.security_level
    if level is None or level.rank <= context.security_level.rank:
        return []
    message = f"{level} is above {context.security_level}, which this agent was given"
    return [Problem("context.security_level", message)]


def _out_of_reach(stated: ResponseContext, context: ActionContext) -> list[Problem]:
    allowed = context.allowed_knowledge
    if allowed is None:
        return []
    known = ", ".join(sorted(allowed)) or "none"
    return [
        Problem(f"context.knowledge_relics[{number}]", f"{knowledge_id!r} may not be read; those that may are {known}")
        for number, knowledge_id in enumerate(stated.knowledge_relics)
        if knowledge_id not in allowed
    ]


def _variables(stated: ResponseContext, context: ActionContext, problems: list[Problem]) -> dict[str, JsonValue]:
    variables: dict[str, JsonValue] = {}
    for name, value in {**context.variables, **stated.variables}.items():
        try:
            variables[name] = json_form(value, f"context.variables.{name}")
        except ValueUnserialisable as error:
            problems.append(Problem(error.place, str(error).removeprefix(f"{error.place}: ")))
    return variables


def _runnable(planned: PlannedAction, registry: ToolRegistry, problems: list[Problem]) -> Runnable | None:
    action = planned.action
    is_internal = action.type is ActionType.INTERNAL
    runnable = VERBS.get(action.action) if is_internal else registry.find(action.type, action.action)
    if runnable is None and action.type is ActionType.SCRIPT:
        message = "this agent runs no scripts: no sandboxed runner is registered"
        problems.append(Problem(f"{planned.path}.type", message))
    elif runnable is None:
        what, known = ("internal verb", VERBS) if is_internal else ("tool", registry.tools)
        message = f"there is no {what} {action.action!r}; those there are: {', '.join(sorted(known)) or 'none'}"
        problems.append(Problem(f"{planned.path}.action", message))
    elif is_internal and action.execution is Execution.ASYNC:
        problems.append(Problem(f"{planned.path}.execution", "an internal verb runs at once: use SYNC"))
    return runnable


def params_problems(
    action: Action,
    place: str,
    runnable: Runnable,
    variables: Mapping[str, JsonValue],
    results: Mapping[str, JsonValue],
) -> list[Problem]:
    """Return what is wrong with the params, as far as they are known before all the results are."""
    params = dict(action.params)
    known = lookup(variables, results)

    def resolve(reference: Reference) -> JsonValue:
        return None if _is_to_come(reference, results) else known(reference)

    try:
        substituted = substitute(params, resolve)
    except ReferenceUnknown as error:
        return [Problem(place, str(error))]
    waiting = (
        name
        for name, value in params.items()
        if any(_is_to_come(reference, results) for reference in references_in(value))
    )
    return runnable.problems_of(substituted, place, frozenset(waiting))


def _is_to_come(reference: Reference, results: Mapping[str, JsonValue]) -> bool:
    return reference.root == "results" and reference.head not in results


# Running them, and what became of each.


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
        statuses = {observation.status for observation in self.observations}
        if statuses & {ObservationStatus.ERROR, ObservationStatus.CANCELLED}:
            return STATUS_ERROR
        return STATUS_TASK_STARTED if ObservationStatus.TASK_STARTED in statuses else STATUS_SUCCESS

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
        levels = (self.levels.get(one.head) for one in used if one.root == "results")
        return lowest(self.checked.level, *(level for level in levels if level is not None))

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


__all__ = [
    "VERBS",
    "ActionContext",
    "ActionError",
    "ActionExecutor",
    "ActionMemory",
    "ActionReport",
    "ActionsRefused",
    "Effect",
    "KnowledgeOutOfScope",
    "KnowledgeScope",
    "Observation",
    "ObservationStatus",
    "Problem",
    "ReferenceUnknown",
    "Script",
    "StateMemory",
    "TaskLost",
    "TaskUnknown",
    "Tool",
    "ToolCall",
    "ToolFailed",
    "ToolInvalid",
    "ToolRegistry",
    "ValueUnserialisable",
]

"""Every check of a response's actions, before anything of it runs."""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from pydantic import JsonValue

from apc_agents.actions.action_context import ActionContext
from apc_agents.actions.verbs import VERBS
from apc_agents.clearance import Trigger
from apc_agents.tools import (
    ActionsRefused,
    Problem,
    ReferenceUnknown,
    Runnable,
    ToolRegistry,
    ValueUnserialisable,
    json_value,
)
from apc_agents.variable_references import Reference, lookup, references_in, substitute
from apc_contracts.agent import Action, ActionType, AgentResponse, Execution, ResponseContext, SecurityLevel

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
            variables[name] = json_value(value, f"context.variables.{name}")
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

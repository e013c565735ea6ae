"""The order in which the actions of a response run, worked out before anything runs.

An action waits for those that it names in depends_on, each with all its sub-actions; for the action that it is a
sub-action of; and for those whose results its params refer to.
"""

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from apc_agents.tools.errors import Problem, ReferenceUnknown
from apc_agents.tools.variable_references import references_in
from apc_contracts.agent import Action, AgentResponse, Execution


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

"""Every check of a response's actions, before anything of it runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from apc_agents.actions.action_context import ActionContext
from apc_agents.actions.plan import PlannedAction, make_plan
from apc_agents.actions.verbs import VERBS
from apc_agents.clearance import Trigger
from apc_agents.tools.errors import ActionsRefused, Problem, ReferenceUnknown, ValueUnserialisable
from apc_agents.tools.result_values import json_value
from apc_agents.tools.tool_registry import Runnable, ToolRegistry
from apc_agents.tools.variable_references import Reference, lookup, references_in, substitute
from apc_contracts.agent import Action, ActionType, AgentResponse, Execution, ResponseContext, SecurityLevel


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

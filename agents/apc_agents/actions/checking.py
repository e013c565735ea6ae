"""Every check of a response's actions, before anything of it runs."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from apc_agents.actions.context import ActionContext
from apc_agents.actions.errors import ActionsRefused, Problem, ReferenceUnknown, ValueUnserialisable
from apc_agents.actions.json_values import json_value
from apc_agents.actions.plan import PlannedAction, make_plan
from apc_agents.actions.references import Reference, Resolve, lookup, references_in, substitute
from apc_agents.actions.registry import Runnable, ToolRegistry
from apc_agents.actions.verbs import VERBS
from apc_contracts.actions import ActionType, AgentResponse, Execution, ResponseContext, SecurityLevel


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
    relics: tuple[str, ...]
    variables: Mapping[str, JsonValue]


def check_response(
    response: AgentResponse, registry: ToolRegistry, context: ActionContext, *, has_tasks: bool
) -> CheckedResponse:
    """What is to be run.

    Raises:
        ActionsRefused: with every problem that was found.
    """
    stated = response.context or ResponseContext()
    problems = [*_above_level(stated, context), *_out_of_reach(stated, context)]
    variables = _variables(stated, context, problems)
    plan = make_plan(response, context.results)
    problems.extend(plan.problems)
    level = stated.security_level or context.security_level
    checked = []
    for planned in plan.actions:
        runnable = _runnable(planned, registry, problems)
        if runnable is None:
            continue
        if runnable.security_level.rank > level.rank:
            message = f"{planned.action.action!r} needs the security_level {runnable.security_level}, this is {level}"
            problems.append(Problem(f"{planned.path}.action", message))
        if planned.action.execution is Execution.ASYNC and not has_tasks:
            message = "this agent runs no tasks: leave out ASYNC, or give the executor a task store"
            problems.append(Problem(f"{planned.path}.execution", message))
        problems.extend(_params_problems(planned, runnable, variables, context))
        checked.append(CheckedAction(planned, runnable))
    if problems:
        raise ActionsRefused(problems)
    return CheckedResponse(tuple(checked), level, stated.knowledge_relics, variables)


def _above_level(stated: ResponseContext, context: ActionContext) -> list[Problem]:
    level = stated.security_level
    if level is None or level.rank <= context.security_level.rank:
        return []
    message = f"{level} is above {context.security_level}, which this agent was given"
    return [Problem("context.security_level", message)]


def _out_of_reach(stated: ResponseContext, context: ActionContext) -> list[Problem]:
    allowed = context.allowed_relics
    if allowed is None:
        return []
    known = ", ".join(sorted(allowed)) or "none"
    return [
        Problem(f"context.knowledge_relics[{number}]", f"{relic_id!r} may not be read; those that may are {known}")
        for number, relic_id in enumerate(stated.knowledge_relics)
        if relic_id not in allowed
    ]


def _variables(stated: ResponseContext, context: ActionContext, problems: list[Problem]) -> dict[str, JsonValue]:
    variables: dict[str, JsonValue] = {}
    for name, value in {**context.variables, **stated.variables}.items():
        try:
            variables[name] = json_value(value, f"context.variables.{name}")
        except ValueUnserialisable as error:
            problems.append(Problem(error.place, str(error).removeprefix(f"{error.place} ")))
    return variables


def _runnable(planned: PlannedAction, registry: ToolRegistry, problems: list[Problem]) -> Runnable | None:
    action = planned.action
    known: Mapping[str, Runnable] = VERBS if action.type is ActionType.INTERNAL else registry.tools
    if action.type is ActionType.SCRIPT:
        script = registry.script(action.action)
        if script is None:
            problems.append(
                Problem(f"{planned.path}.type", "this agent runs no scripts: no sandboxed runner is registered")
            )
        return script
    runnable = known.get(action.action)
    if runnable is None:
        what = "internal verb" if action.type is ActionType.INTERNAL else "tool"
        message = f"there is no {what} {action.action!r}; those there are: {', '.join(sorted(known)) or 'none'}"
        problems.append(Problem(f"{planned.path}.action", message))
    elif action.type is ActionType.INTERNAL and action.execution is Execution.ASYNC:
        problems.append(Problem(f"{planned.path}.execution", "an internal verb runs at once: use SYNC"))
    return runnable


def _params_problems(
    planned: PlannedAction, runnable: Runnable, variables: Mapping[str, JsonValue], context: ActionContext
) -> list[Problem]:
    """What is wrong with the params, as far as they are known before the results are."""
    place = f"{planned.path}.params"
    params = dict(planned.action.params)
    resolve = _known_before(variables, context)
    known = {}
    try:
        known = {name: substitute(value, resolve) for name, value in params.items()}
    except ReferenceUnknown as error:
        return [Problem(place, str(error))]
    waiting = frozenset(name for name, value in params.items() if _waits(value, context))
    return runnable.problems_of(known, place, waiting)


def _waits(value: JsonValue, context: ActionContext) -> bool:
    return any(one.root == "results" and one.head not in context.results for one in references_in(value))


def _known_before(variables: Mapping[str, JsonValue], context: ActionContext) -> Resolve:
    """Resolves what is known already; a result that is still to come is null here and not judged."""
    known = lookup(variables, context.results)

    def resolve(reference: Reference) -> JsonValue:
        if reference.root == "results" and reference.head not in context.results:
            return None
        return known(reference)

    return resolve

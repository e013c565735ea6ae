"""The tools of an agent: typed functions, what a call of one is given and may give, and how it fails."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Any, Protocol, TypeVar, get_type_hints
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError

from apc_agents.clearance import SenderRule, Trigger
from apc_agents.errors import ActionError, EmitUnconfirmed, StateError, ValueUnserialisable
from apc_agents.json_values import result_value, storable
from apc_agents.task_port import Effect, MakeEffect
from apc_bus.concurrency import is_cancelled
from apc_bus.gen_ai import in_tool
from apc_contracts.agent import ActionType, SecurityLevel
from apc_contracts.wire.parsing import mistakes_of, validated

_MOST_SHOWN = 10


class ToolInvalid(ActionError):
    """A function that cannot be a tool; found when it is registered."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an action cannot run: a place in the response (dotted with [i]) and how to mend it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ActionsRefused(ActionError):
    """A response whose actions cannot run; nothing of it has run. `problems` has at least one."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        shown = "; ".join(str(problem) for problem in problems[:_MOST_SHOWN])
        more = f" (and {len(problems) - _MOST_SHOWN} more)" if len(problems) > _MOST_SHOWN else ""
        super().__init__(f"nothing was run: {shown}{more}")
        self.problems = tuple(problems)


class ReferenceUnknown(ActionError):
    """A `${{…}}` that points nowhere."""

    def __init__(self, reference: str, message: str) -> None:
        super().__init__(f"${{{{{reference}}}}} points nowhere: {message}")
        self.reference = reference


class ToolFailed(ActionError):
    """A tool that raised, took too long, or gave what JSON does not know; `__cause__` is what it raised."""


class KnowledgeOutOfScope(ActionError):
    """Knowledge that the response does not list."""

    def __init__(self, knowledge_id: str, listed: Sequence[str]) -> None:
        known = ", ".join(listed) or "nothing"
        super().__init__(f"knowledge {knowledge_id!r} is out of scope: context.knowledge_relics lists {known}")
        self.knowledge_id = knowledge_id


class TaskUnknown(ActionError):
    """No such task."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"there is no task {task_id!r}: `apc task list` shows those there are")
        self.task_id = task_id


class TaskAmbiguous(ActionError):
    """Several agents have a task of this id."""

    def __init__(self, task_id: str, agents: Sequence[str]) -> None:
        super().__init__(f"agents {', '.join(agents)} each have a task {task_id!r}: name one with --agent")
        self.task_id = task_id
        self.agents = tuple(agents)


class TaskLost(ActionError):
    """Another worker has taken the task over, or it was cancelled: this attempt ends here."""

    def __init__(self, task_id: str, attempt: int) -> None:
        super().__init__(f"attempt {attempt} of task {task_id} has lost it: another one runs it, or it was cancelled")
        self.task_id = task_id


# Give a tool the knowledge that the response lists, and no other.

ReadKnowledge = Callable[[str], Awaitable[JsonValue]]
"""knowledge_id -> what it holds; raises when there is none."""


class KnowledgeScope:
    """A handle on the listed knowledge."""

    def __init__(self, listed: tuple[str, ...], read: ReadKnowledge | None) -> None:
        self.listed = listed
        """The ids that may be read."""
        self._read = read

    async def read(self, knowledge_id: str) -> JsonValue:
        """Return the knowledge of this id.

        Raises:
            KnowledgeOutOfScope: the response does not list it.
            ActionError: the agent has no reader of knowledge.
        """
        if knowledge_id not in self.listed:
            raise KnowledgeOutOfScope(knowledge_id, self.listed)
        if self._read is None:
            raise ActionError("this agent has no knowledge: give ToolRegistry(read_knowledge=...)")
        return await self._read(knowledge_id)


# What a tool is given beside its arguments, when it asks for it by a parameter of the type ToolCall.


class Once(Protocol):
    """Makes an effect of a handler once, as HandlerContext.once."""

    def __call__(self, key: str, fn: Callable[[], Awaitable[JsonValue]]) -> Awaitable[JsonValue]:
        """Make the effect, or return its result. Raises EffectUnknown, EffectResultLost."""
        ...


class TaskHandle(Protocol):
    """How a running task reports its progress and makes its effects."""

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of the task. Raises TaskLost."""
        ...

    async def once(self, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect unless an attempt of this task has made it. Raises TaskLost."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a tool."""

    action_id: str
    agent_id: str
    session_id: str
    security_level: SecurityLevel
    key: UUID
    """The same whenever this action runs again after a crash: an idempotency key for what it calls."""
    scope: KnowledgeScope | None = None
    task: TaskHandle | None = None
    task_id: str | None = None
    """None for a SYNC action."""
    of_handler: Once | None = None
    """Makes the effects of a SYNC action once; None where its handler keeps no record of effects."""

    @property
    def knowledge(self) -> KnowledgeScope:
        """The knowledge that this tool may read. Raises ActionError when it was registered without reads=True."""
        if self.scope is None:
            raise ActionError("this tool reads no knowledge: register it with reads=True")
        return self.scope

    async def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of a task, 0..1; ignored in a SYNC action.

        Raises:
            ActionError: a fraction outside 0..1.
            TaskLost: another worker has the task now.
        """
        if not 0 <= fraction <= 1:
            raise ActionError(f"progress {fraction} is outside 0..1")
        if self.task is not None:
            await self.task.progress(fraction, note)

    async def once(self, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect that was not made before by this action, and return what it gave the first time.

        In a task `make` runs inside the transaction that records the effect: keep it short. What it writes with the
        connection takes effect once. What it does elsewhere may happen again when the worker dies between that and the
        record: pass the key on.

        In a SYNC action it is `ctx.once` of the handler (docs/how-to/effects.md): there is no connection, and an effect
        that was interrupted is told as unknown.

        Raises:
            TaskLost: another worker has the task now.
            EffectUnknown, EffectResultLost: in a SYNC action.
        """
        if self.task is not None:
            return await self.task.once(name, make)
        effect = Effect(f"{self.key}/{name}")
        if self.of_handler is None:
            return await make(effect)

        async def made() -> JsonValue:
            return await make(effect)

        return await self.of_handler(effect.key, made)


# The tools of an agent: typed functions, each with the JSON Schema of its parameters.

DEFAULT_TIME_LIMIT = timedelta(seconds=60)

ToolFunction = Callable[..., Awaitable[Any]]
ToolT = TypeVar("ToolT", bound=ToolFunction)
ScriptRunner = Callable[[str, Mapping[str, JsonValue], ToolCall], Awaitable[JsonValue]]
"""(script, params, call) -> its result; it must keep the script from everything that the agent may do."""

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Tool:
    """A registered function. `injected` maps the parameters that are no arguments to the type of what they get."""

    name: str
    description: str
    function: ToolFunction
    arguments: type[BaseModel]
    injected: Mapping[str, type]
    security_level: SecurityLevel
    reads: bool
    time_limit: timedelta
    senders: SenderRule | None = None
    """Whose packets may trigger it; None = anybody's whose level suffices."""
    result_level: SecurityLevel | None = None
    """The highest level at which a response may act that has seen its result; None = that of the caller."""

    @property
    def parameters(self) -> dict[str, Any]:
        """JSON Schema of the params."""
        return self.arguments.model_json_schema()

    def problems_of(self, params: Mapping[str, Any], path: str, ignored: frozenset[str] = frozenset()) -> list[Problem]:
        """Return why params do not fit; what is `ignored` is judged when it is known."""
        try:
            self._validated(params)
        except TypeError as error:  # an integer beyond 64 bits, or half a surrogate pair
            return [Problem(path, f"cannot be written as JSON: {error}")]
        except ValidationError as error:
            for place, message in mistakes_of(error):
                if re.split(r"[.\[]", place, maxsplit=1)[0] not in ignored:
                    return [Problem(path if place == "$" else f"{path}.{place}", message)]
        return []

    def bound(self, params: Mapping[str, Any], given: Mapping[type, Any]) -> Awaitable[Any]:
        """Return the call of the function with these params. Raises ValidationError: check `problems_of` before."""
        checked = self._validated(params)
        arguments = {name: getattr(checked, name) for name in self.arguments.model_fields}
        return self.function(**arguments, **{name: given[kind] for name, kind in self.injected.items()})

    def _validated(self, params: Mapping[str, Any]) -> BaseModel:
        # As JSON: a time or a UUID is written as text there, and a text is never a number.
        return validated(orjson.dumps(params), partial(self.arguments.model_validate_json, strict=True))


@dataclass(frozen=True, slots=True)
class Script:
    """A script for the sandboxed runner; its params are the runner's business."""

    name: str
    runner: ScriptRunner
    security_level: SecurityLevel
    time_limit: timedelta
    reads: bool = False
    senders: SenderRule | None = None
    result_level: SecurityLevel | None = None

    def problems_of(self, params: Mapping[str, Any], path: str, ignored: frozenset[str] = frozenset()) -> list[Problem]:
        """Return no problems: any arguments are valid."""
        return []

    def bound(self, params: Mapping[str, Any], given: Mapping[type, Any]) -> Awaitable[Any]:
        """Return the runner's call."""
        return self.runner(self.name, params, given[ToolCall])


Runnable = Tool | Script


class ToolRegistry:
    """The tools of an agent by name.

    ```python
    tools = ToolRegistry()

    @tools.tool(security_level="user", time_limit=timedelta(minutes=5))
    async def build(target: str, config: Literal["debug", "release"] = "debug") -> dict[str, str]:
        '''Builds a target.'''
    ```
    """

    def __init__(self, *, read_knowledge: ReadKnowledge | None = None) -> None:
        self.read_knowledge = read_knowledge
        """Reads knowledge by its id, for tools with reads=True."""
        self._tools: dict[str, Tool] = {}
        self._scripts: Callable[[str], Script] | None = None

    def tool(
        self,
        name: str | None = None,
        *,
        description: str | None = None,
        security_level: SecurityLevel | str = SecurityLevel.USER,
        reads: bool = False,
        time_limit: timedelta = DEFAULT_TIME_LIMIT,
        senders: SenderRule | None = None,
        result_level: SecurityLevel | str | None = None,
    ) -> Callable[[ToolT], ToolT]:
        """Register `async def tool(...)`. A parameter of the type ToolCall gets the call, all others are arguments.

        Args:
            name: default the function's.
            description: what a model is told; default the function's docstring.
            security_level: the lowest level at which it may run.
            reads: it reads knowledge (ToolCall.knowledge).
            time_limit: it is cancelled after so long.
            senders: whose packets may trigger it; default anybody's whose level suffices.
            result_level: give `public` to a tool that fetches text of unknown authors: an LLM agent that has its
                result in the window acts at most at this level. Default the level of the caller.

        Raises:
            ToolInvalid: a name that is taken, no coroutine function, parameters without types.
        """

        def register(function: ToolT) -> ToolT:
            made = make_tool(
                function,
                (ToolCall,),
                name=name or function.__name__,
                description=description,
                security_level=security_level,
                reads=reads,
                time_limit=time_limit,
                senders=senders,
                result_level=result_level,
            )
            if made.name in self._tools:
                raise ToolInvalid(f"there are two tools {made.name!r}: give one of them another name=")
            self._tools[made.name] = made
            return function

        return register

    def run_scripts_with(
        self,
        runner: ScriptRunner,
        *,
        security_level: SecurityLevel | str = SecurityLevel.ADMIN,
        time_limit: timedelta = DEFAULT_TIME_LIMIT,
    ) -> None:
        """Accept actions of the type `script`; the runner is the sandbox. Raises ToolInvalid."""
        level, limit = _level("script", security_level), _limit("script", time_limit)
        self._scripts = lambda name: Script(name, runner, level, limit)

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every tool by name."""
        return self._tools

    def find(self, kind: ActionType, name: str) -> Runnable | None:
        """Return what runs an action of the type `tool` or `script`."""
        return self.script(name) if kind is ActionType.SCRIPT else self._tools.get(name)

    def script(self, name: str) -> Script | None:
        """Return a script; None without a runner."""
        return None if self._scripts is None else self._scripts(name)

    def described(self, level: SecurityLevel, trigger: Trigger | None = None) -> list[dict[str, Any]]:
        """Return what a model is told of the tools that may run: name, description, JSON Schema of the params."""
        return [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
            for tool in self._tools.values()
            if tool.security_level.rank <= level.rank and (trigger is None or trigger.may_use(tool.senders))
        ]

    def compartment(self, trigger: Trigger) -> str:
        """Return the name of what the trigger may remember: the same for all that may trigger the same tools."""
        allowed = sorted(name for name, tool in self._tools.items() if tool.senders and trigger.may_use(tool.senders))
        level = trigger.level.value
        return f"{level}-{sha256(orjson.dumps(allowed)).hexdigest()[:16]}" if allowed else level


def make_tool(
    function: ToolFunction,
    injectable: tuple[type, ...],
    *,
    name: str,
    description: str | None = None,
    security_level: SecurityLevel | str,
    reads: bool = False,
    time_limit: timedelta = DEFAULT_TIME_LIMIT,
    senders: SenderRule | None = None,
    result_level: SecurityLevel | str | None = None,
) -> Tool:
    """Return a tool of a function. Raises ToolInvalid."""
    if not inspect.iscoroutinefunction(function):
        raise ToolInvalid(
            f"tool {name!r} is no coroutine function: write `async def`, and give blocking work to "
            "asyncio.to_thread, which a time limit cannot stop"
        )
    injected, fields = _parameters_of(function, name, injectable)
    return Tool(
        name,
        description if description is not None else inspect.getdoc(function) or "",
        function,
        _arguments_model(name, fields),
        injected,
        _level(name, security_level),
        reads,
        _limit(name, time_limit),
        senders,
        None if result_level is None else _level(name, result_level),
    )


def _parameters_of(
    function: ToolFunction, name: str, injectable: tuple[type, ...]
) -> tuple[dict[str, type], dict[str, Any]]:
    """Return the injected parameters with their types, and the fields of the arguments. Raises ToolInvalid."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise ToolInvalid(f"tool {name!r} has a type that cannot be read: {error}") from error
    injected: dict[str, type] = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in _NAMED or parameter.name.startswith("_"):
            raise ToolInvalid(f"tool {name!r} has the parameter {parameter}: parameters need their own name")
        if parameter.name not in hints:
            raise ToolInvalid(f"tool {name!r}: parameter {parameter.name!r} has no type: give one")
        if hints[parameter.name] in injectable:
            injected[parameter.name] = hints[parameter.name]
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return injected, fields


def _arguments_model(name: str, fields: Mapping[str, Any]) -> type[BaseModel]:
    """Return the model that checks a call's arguments. Raises ToolInvalid."""
    config = ConfigDict(extra="forbid", protected_namespaces=())
    try:
        arguments: type[BaseModel] = create_model(f"{name}_params", __config__=config, **fields)
        arguments.model_json_schema()
    except (PydanticUserError, NameError) as error:
        raise ToolInvalid(f"tool {name!r} has a parameter that JSON cannot carry: {error.args[0]}") from error
    return arguments


def _level(name: str, level: SecurityLevel | str) -> SecurityLevel:
    try:
        return SecurityLevel(level)
    except ValueError as error:
        known = ", ".join(SecurityLevel)
        raise ToolInvalid(f"{name}: unknown security_level {level!r}: use one of {known}") from error


def _limit(name: str, limit: timedelta) -> timedelta:
    if limit <= timedelta(0):
        raise ToolInvalid(f"{name}: a time_limit of {limit} lets nothing run: make it longer")
    return limit


# Calls a tool: within its time limit, and with a result that is JSON.

_NOT_THE_TOOLS_FAULT = (EmitUnconfirmed, StateError, TaskLost)
"""What the worker itself must see: it runs the handler or the task again, or drops it."""


def _in_span(runnable: Runnable, given: Mapping[type, Any]) -> AbstractContextManager[None]:
    call = given.get(ToolCall)
    if not isinstance(call, ToolCall):
        return nullcontext()
    return in_tool(runnable.name, call.action_id, call.agent_id, call.session_id)


async def invoke(runnable: Runnable, params: Mapping[str, Any], given: Mapping[type, Any]) -> JsonValue:
    """Return what the tool returns, as JSON. `params` are checked; `given` is what is injected, by type.

    Raises:
        ToolFailed: it raised, was cancelled at its time limit, or its result is no JSON or too large.
        EmitUnconfirmed, StateError, TaskLost: as the tool raised them.
    """
    over_time = f"it was cancelled at its time limit of {runnable.time_limit.total_seconds():g} s"
    try:
        async with asyncio.timeout(runnable.time_limit.total_seconds()) as limit:
            with _in_span(runnable, given):
                value = await runnable.bound(params, given)
    except _NOT_THE_TOOLS_FAULT:
        raise
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        raise ToolFailed("it was cancelled from within") from error
    except (SystemExit, GeneratorExit) as error:
        raise ToolFailed(f"it raised {error!r}") from error
    except Exception as error:
        if limit.expired():
            raise ToolFailed(over_time) from error
        raise ToolFailed(storable(f"{type(error).__name__}: {error}")) from error
    if limit.expired():
        raise ToolFailed(over_time)
    return _checked(value)


def _checked(value: Any) -> JsonValue:
    try:
        return result_value(value)
    except ValueUnserialisable as error:
        raise ToolFailed(str(error)) from error

"""The tools of an agent: typed functions, each with the JSON Schema of its parameters."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, TypeVar, get_type_hints

import orjson
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError, create_model
from pydantic.errors import PydanticUserError

from apc_agents.clearance import SenderRule, Trigger
from apc_agents.tools.call import ToolCall
from apc_agents.tools.errors import Problem, ToolInvalid
from apc_agents.tools.knowledge import ReadKnowledge
from apc_contracts.agent import ActionType, SecurityLevel
from apc_contracts.wire.parsing import mistakes_of

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
        validated = self._validated(params)
        arguments = {name: getattr(validated, name) for name in self.arguments.model_fields}
        return self.function(**arguments, **{name: given[kind] for name, kind in self.injected.items()})

    def _validated(self, params: Mapping[str, Any]) -> BaseModel:
        # As JSON: a time or a UUID is written as text there, and a text is never a number.
        return self.arguments.model_validate_json(orjson.dumps(params), strict=True)


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

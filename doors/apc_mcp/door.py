"""Who calls the MCP server, and what a tool needs: a role, marks, a limit, and refusals in words."""

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

import asyncpg
import orjson
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from mcp_types import Tool as ListedTool
from pydantic import ValidationError
from starlette.datastructures import Headers

from apc_mcp.answers import answer_of, refused
from apc_web.access import AccountRole, Authority, Caller, require, say_caller
from apc_web.route_services import Acts, Reading

Examine = Callable[[], Awaitable[Sequence[Mapping[str, str]]]]
"""Checks the whole system; returns one row for each finding, with `check`, `status`, `finding` and `fix`."""
Tool = Callable[..., Awaitable[Any]]
Method = TypeVar("Method", bound=Tool)
READS = ToolAnnotations(read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False)
ACTS = ToolAnnotations(read_only_hint=False, idempotent_hint=False, destructive_hint=True, open_world_hint=False)


@dataclass(frozen=True, slots=True)
class Door:
    """What an MCP server works with, and whom it answers.

    Args:
        reading: what reads the log.
        state: connections that read the agents' effects; None = there is no such tool.
        local: who calls over stdio; None = each request names an account by its token.
        authority: tells whose token it is; None = stdio alone.
        acts: what an operator can do; None = this server only reads.
        examine: what `apc doctor` does; None = there is no such tool.
    """

    reading: Reading
    state: asyncpg.Pool | None = None
    local: Caller | None = None
    authority: Authority | None = None
    acts: Acts | None = None
    examine: Examine | None = None

    def caller(self) -> Caller:
        """Return who sent the request. Raises ToolError for somebody who is not known any more."""
        if self.authority is None and self.local is not None:
            return self.local
        token = get_access_token()
        who = None if token is None else self.caller_of(token.token)
        if who is None:
            raise ToolError("LOGIN: this token is not known here, or not any more")
        return who

    def caller_of(self, token: str) -> Caller | None:
        """Return whose token it is. A cookie or a proof of the web console is none."""
        if self.authority is None:
            return None
        return self.authority.caller_of(Headers({"authorization": f"Bearer {token}"}))

    def as_caller(self, role: AccountRole) -> Caller:
        """Let the rest of this request be that of its caller; return them. Raises ToolError, ApiError (403)."""
        who = self.caller()
        say_caller(who)
        require(role)
        return who


class LogServer(MCPServer[Door]):
    """A server that offers what its caller's role may do, and refuses arguments that a tool has not.

    An assistant that misspells a bound would take everything for what it asked.
    """

    def __init__(self, door: Door, name: str, **options: Any) -> None:
        """Make it; `options` as MCPServer."""
        super().__init__(name, **options)
        self._door = door
        self.roles: dict[str, AccountRole] = {}
        """By the name of a tool, what its caller must be."""

    async def list_tools(self) -> list[ListedTool]:
        """Return the tools that the caller may call. Raises ToolError for somebody who is not known any more."""
        role = self._door.caller().role
        return [tool for tool in await super().list_tools() if role.includes(self.roles[tool.name])]

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Door, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """As MCPServer. Raises ToolError, in words, for arguments that the tool has not, or that do not fit."""
        schemas = {tool.name: tool.input_schema for tool in await super().list_tools()}
        known: Mapping[str, Any] = schemas.get(name, {}).get("properties", {})
        unknown = next((one for one in arguments if name in schemas and one not in known), None)
        if unknown is not None:
            raise ToolError(f"INVALID at {unknown}: {_meant(unknown, name, known)}")
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            raise ToolError(_unfitting(error.__cause__, known)) from None


def _meant(unknown: str, tool: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(unknown, known, n=1)
    remedy = f"do you mean {close[0]}?" if close else f"it has {', '.join(known) or 'none'}"
    return f"{tool} has no such argument; {remedy}"


def _unfitting(error: ValidationError, known: Mapping[str, Any]) -> str:
    """Return what is wrong with the first argument at fault, and what it means; a pattern is nothing to read."""
    first = error.errors(include_url=False, include_input=False)[0]
    field = str(first["loc"][0]) if first["loc"] else "$"
    words = "this does not fit" if first["type"] == "string_pattern_mismatch" else first["msg"]
    meaning = known.get(field, {}).get("description")
    return f"INVALID at {field}: {words}" + (f". It is: {meaning}" if meaning else "")


def needs(role: AccountRole) -> Callable[[Method], Method]:
    """Mark a method as a tool for callers with this role; its docstring is what assistants read of it."""

    def named(method: Method) -> Method:
        method.__dict__["apc_role"] = role
        return method

    return named


def add_tools(server: LogServer, door: Door, holder: object, annotations: ToolAnnotations) -> None:
    """Add the marked methods of an object as tools, in the order of its class."""
    for name, function in vars(type(holder)).items():
        role = getattr(function, "apc_role", None)
        if role is not None:
            add_tool(server, door, getattr(holder, name), role, annotations)


def add_tool(server: LogServer, door: Door, function: Tool, role: AccountRole, annotations: ToolAnnotations) -> None:
    """Add a function as a tool for callers with this role; its docstring is what assistants read of it."""
    server.roles[function.__name__] = role
    words = " ".join((function.__doc__ or "").split())
    server.add_tool(guarded(door, function, role), function.__name__, None, words, annotations)


def guarded(door: Door, function: Tool, role: AccountRole) -> Tool:
    """Return a tool that asks for its role, marks and cuts what it answers, and refuses in words."""

    @wraps(function)
    async def run(*arguments: Any, **named: Any) -> CallToolResult:
        try:
            door.as_caller(role)
            answer = answer_of(await function(*arguments, **named))
        except ToolError:
            raise
        except Exception as error:
            raise refused(error, function.__name__) from None
        text = TextContent(type="text", text=orjson.dumps(answer).decode())
        return CallToolResult(content=[text], structured_content=answer)

    signature = inspect.signature(function, eval_str=True)
    run.__dict__["__signature__"] = signature.replace(return_annotation=CallToolResult)
    run.__annotations__ = {**run.__annotations__, "return": CallToolResult}
    return run

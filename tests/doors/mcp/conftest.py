"""MCP servers over a session that a real gate judged and a real log writer stored, and a client of the SDK."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, ElicitResult, TextContent
from tests.web.conftest import WebBench, bench, house, idea, told
from tests.web.inbox.conftest import Desk, desk, folder

from apc_mcp import Door, make_server
from apc_web.access import LOCAL, LOCAL_USER, AccountRole, Caller

__all__ = ["bench", "desk", "folder", "house", "idea", "told"]


class Assistant:
    """A client that reads answers as an assistant does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Return the answer of a tool, without its envelope."""
        return (await self.whole(tool, **arguments))["answer"]

    async def whole(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return everything that a tool answers."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, words_of(result)
        whole: dict[str, Any] = result.structured_content or {}
        return whole

    async def refusal(self, tool: str, **arguments: Any) -> str:
        """Return the words with which a tool refuses."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.structured_content
        return words_of(result).removeprefix(f"Error executing tool {tool}: ")


def words_of(result: CallToolResult) -> str:
    """Return the text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def server_of(bench: WebBench, role: AccountRole = AccountRole.OPERATOR, **more: Any) -> MCPServer[Door]:
    """Return the server that stands beside a web console, for a local caller of this role."""
    return make_server(Door(bench.services, bench.services.state, local=Caller(LOCAL_USER, role), **more))


@asynccontextmanager
async def opened(client: Client) -> AsyncIterator[Assistant]:
    """Open a client in a separate task: it has to be closed by the task that opened it, which fixtures do not do."""
    opening: asyncio.Future[Assistant] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def hold() -> None:
        async with client:
            opening.set_result(Assistant(client))
            await ended.wait()

    held = asyncio.create_task(hold())
    held.add_done_callback(lambda _: opening.cancel())
    try:
        yield await opening
    finally:
        ended.set()
        await held


@pytest.fixture
async def assistant(told: WebBench) -> AsyncIterator[Assistant]:
    async with opened(Client(server_of(told))) as client:
        yield client


class Person:
    """Answers what the client shows: `reply` says how, `shown` keeps the texts and the hashes that the form had."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.hashes: list[str] = []
        self.reply: dict[str, Any] = {}
        self.action = "accept"
        self.meanwhile: Callable[[], Awaitable[Any]] | None = None
        """What happens while the first question is read."""

    async def answer(self, context: Any, params: Any) -> ElicitResult:
        """Answer one question."""
        if self.meanwhile is not None and not self.shown:
            await self.meanwhile()
        self.shown.append(params.message)
        self.hashes.append(params.requested_schema["properties"]["seen"]["default"])
        content = {"seen": self.hashes[-1], **self.reply}
        return ElicitResult(action=self.action, content=content if self.action == "accept" else None)


@pytest.fixture
def person() -> Person:
    return Person()


@pytest.fixture(params=["auto", "legacy"])
async def operator(desk: Desk, person: Person, request: pytest.FixtureRequest) -> AsyncIterator[Assistant]:
    """A client of a server with acts, in the newest protocol and in the one before, with a person at it."""
    services = desk.bench.services
    door = Door(services, services.state, local=LOCAL, acts=services.acts)
    async with opened(Client(make_server(door), mode=request.param, elicitation_callback=person.answer)) as client:
        yield client

"""A chat server on a real socket, and a client that looks for secrets in every answer."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from apc_cli.api import Tokens, make_app
from apc_minds.actions import ToolRegistry
from apc_minds.context import SessionConfig
from apc_minds.llm import LLMAgent, LLMSettings, Persona
from apc_minds.memory import InMemoryMemoryStore
from apc_minds.tasks.in_memory import InMemoryTaskStore
from apc_web.http import make_server

JSON = {"Content-Type": "application/json"}


SECRETS = ("xylophone", "warmth", "Your persona", "AgentResponse", "lookup", "zanzibar", "DROPPABLE", "REQUIRED")
"""What stands in the prompt, the persona and the tools, or names a class of the linearity map."""


FORBIDDEN_KEYS = {
    "prompt",
    "systemPrompt",
    "instructions",
    "persona",
    "eigenvectors",
    "linearity",
    "linearityMap",
    "resource_class",
    "strategy",
    "compressionStrategy",
    "thoughts",
    "metadata",
    "threshold",
}


SHAPES = {
    frozenset({"messages", "pressure", "status", "canSend", "canCompress", "canClear"}),
    frozenset({"id", "role", "content", "timestamp", "isPreserved"}),
    frozenset({"response", "contextProps"}),
    frozenset({"contextProps"}),
    frozenset({"id", "contextProps"}),
    frozenset({"error"}),
    frozenset({"code", "message"}),
    frozenset({"code", "message", "field"}),
}
"""Every object that may be told."""


ACTIONS: dict[str, dict[str, Any]] = {
    "spell": {"action": "spell", "type": "tool", "params": {"word": "sea"}},
    "fly": {"action": "fly", "type": "tool"},
    "bad params": {"action": "spell", "type": "tool", "params": {"words": 7}},
    "broken": {"action": "break_down", "type": "tool"},
    "later": {"action": "spell", "type": "tool", "params": {"word": "sea"}, "execution": "ASYNC"},
    "remember": {"action": "remember", "type": "internal", "params": {"key": "sea", "value": "blue"}},
    "emit": {"action": "emit", "type": "internal", "params": {"packet_type": "SIGNAL", "payload": {"signal": "QUERY"}}},
}
"""What the model does first when a message begins so."""


def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    assert "xylophone" in str(info.instructions) and "zanzibar" in str(info.instructions)
    told = str(messages[-1].parts[-1].content)
    if found := next((actions for word, actions in ACTIONS.items() if told.startswith(word)), None):
        answer = {"status": "EXECUTING", "thoughts": [], "actions": [found], "stop": False, "response": None}
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, answer)])
    if "fail" in str(messages):
        return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, {"no": "response"})])
    said = "Done." if told.startswith("<<data ") else f"You said: {told}"
    thought = {"type": "PLAN", "content": "The strategy is zanzibar."}
    answer = {"status": "SUCCESS", "thoughts": [thought], "actions": [], "stop": True, "response": said}
    return ModelResponse(parts=[ToolCallPart(info.output_tools[0].name, answer)])


def make_agent() -> LLMAgent:
    tools = ToolRegistry()

    @tools.tool(description="zanzibar")
    async def lookup(word: str) -> str:
        return word

    @tools.tool()
    async def spell(word: str) -> list[str]:
        return list(word)

    @tools.tool()
    async def break_down() -> None:
        raise RuntimeError("it is broken")

    return LLMAgent(
        "helper-1",
        role="helper",
        swarm="chat",
        model=FunctionModel(think),
        tools=tools,
        persona=Persona("assistant", {"warmth": 0.5}, ["Never mention the xylophone."]),
        config=SessionConfig(max_tokens=600),
        settings=LLMSettings(output_retries=1),
    )


class Client:
    """A frontend that looks at everything it is told."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.told: list[Any] = []
        self.asked: set[tuple[str, str, int]] = set()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        response = await self.http.request(method, path, **options)
        self.told += [response.json(), list(response.headers.values())]
        self.asked.add((method, re.sub(r"^/sessions/[^/]+/", "/sessions/{id}/", path), response.status_code))
        return response

    async def begin(self) -> str:
        response = await self.ask("POST", "/sessions")
        assert response.status_code == 201 and response.headers["location"].endswith("/props")
        return str(response.json()["id"])

    def check(self) -> None:
        """Every key and value of every response and event."""
        assert self.told
        for document in self.told:
            for keys, value in walk(document):
                assert keys is None or keys in SHAPES, keys
                assert not (keys or set()) & FORBIDDEN_KEYS
                assert not any(secret in str(value) for secret in SECRETS), value


def walk(value: Any) -> Iterator[tuple[frozenset[str] | None, Any]]:
    """Yield every object by its keys, and every leaf."""
    if isinstance(value, dict):
        yield frozenset(value), ""
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)
    else:
        yield None, value


@asynccontextmanager
async def serving(tokens: Tokens) -> AsyncIterator[str]:
    app = make_app(make_agent(), InMemoryMemoryStore("nobody").for_owner, tokens, InMemoryTaskStore())
    listening = socket.create_server(("127.0.0.1", 0))
    server = make_server(app, "127.0.0.1", 0, graceful_seconds=1)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listening.close()

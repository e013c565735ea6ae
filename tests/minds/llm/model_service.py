"""A service on this machine that speaks OpenAI's API: Starlette under uvicorn, in the loop of the test."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

PROMPT_TOKENS, COMPLETION_TOKENS = 50, 12
"""What the service says that each answer has taken."""

Reply = Callable[[dict[str, Any]], Awaitable[Response | str]]
"""Answers the body of a request: a Response as it stands, or the text that the model writes."""


def written(**fields: Any) -> str:
    """Return an AgentResponse as a model writes it."""
    return orjson.dumps({"status": "SUCCESS", "stop": True, "response": None, **fields}).decode()


@dataclass
class ModelService:
    """What it answers, and what it was sent."""

    reply: Reply
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)

    async def complete(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        body = orjson.loads(await request.body())
        self.requests.append(body)
        self.authorizations.append(request.headers["authorization"])
        reply = await self.reply(body)
        return JSONResponse(completion({"content": reply})) if isinstance(reply, str) else reply


def completion(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    """Return a chat completion with one message."""
    return {
        "id": "c-1",
        "object": "chat.completion",
        "created": 1,
        "model": "small",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish_reason}],
        "usage": {
            "prompt_tokens": PROMPT_TOKENS,
            "completion_tokens": COMPLETION_TOKENS,
            "total_tokens": PROMPT_TOKENS + COMPLETION_TOKENS,
        },
    }


@asynccontextmanager
async def model_service(reply: Reply) -> AsyncIterator[ModelService]:
    """Runs it; what still waits for an answer at the end is cut off."""
    listening = socket.create_server(("127.0.0.1", 0))
    service = ModelService(reply, f"http://127.0.0.1:{listening.getsockname()[1]}/v1")
    app = Starlette(routes=[Route("/v1/chat/completions", service.complete, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield service
    finally:
        server.should_exit = True
        await running
        listening.close()

"""The routes of the frontend contract.

A frontend receives props, never a prompt. Source: docs/reference/conformance/context-engineering.md, sections 1.2, 5.3
and 7.3.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable
from weakref import WeakValueDictionary

import orjson
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from apc_agents.llm import Dialogue, LLMAgent, Props
from apc_agents.memory import BaseMemoryStore, UnknownSession
from apc_agents.memory.errors import checked_id
from apc_agents.tasks import TaskStore
from apc_console.api.error_answers import REFUSED, RequestRefused, answer_refusal
from apc_console.api.identity import Tokens
from apc_console.api.request_bodies import NewMessage, Nothing, read_body, revision_of
from apc_contracts.identity.ids import new_packet_id

MemoryOf = Callable[[str], BaseMemoryStore]
"""Returns the memory of a user."""
ANSWER_EMPTY = b"{}"
MOST_STREAMS = 32
"""Event streams that one user may have open at the same time."""
MOST_SESSIONS = 600
"""Sessions that one user may begin in an hour."""
PROPS_EVENT = "props"
_HOUR_SECONDS = 3600.0


def make_app(agent: LLMAgent, memory_of: MemoryOf, tokens: Tokens, tasks: TaskStore | None = None) -> Starlette:
    """Return the application; one user's conversations are invisible to others."""
    routes = _Routes(agent, memory_of, tokens, tasks)
    app = Starlette(
        routes=[
            Route("/sessions", routes.begin, methods=["POST"]),
            Route("/sessions/{id}/props", routes.props),
            Route("/sessions/{id}/messages", routes.say, methods=["POST"]),
            Route("/sessions/{id}/compress", routes.compress, methods=["POST"]),
            Route("/sessions/{id}/clear", routes.clear, methods=["POST"]),
            Route("/sessions/{id}/events", routes.events),
        ],
        exception_handlers=dict.fromkeys((*REFUSED, Exception), answer_refusal),
    )
    app.router.redirect_slashes = False  # a redirect has no body that says what is wrong
    return app


class _Routes:
    """The handlers of the routes. Concurrent requests of one session share one Dialogue; idle ones are dropped."""

    def __init__(self, agent: LLMAgent, memory_of: MemoryOf, tokens: Tokens, tasks: TaskStore | None) -> None:
        self._agent = agent
        self._memory_of = memory_of
        self._tokens = tokens
        self._tasks = tasks
        self._dialogues: WeakValueDictionary[tuple[str, str], Dialogue] = WeakValueDictionary()
        self._streams: Counter[str] = Counter()
        self._begun: defaultdict[str, deque[float]] = defaultdict(deque)

    async def begin(self, request: Request) -> Response:
        """Begin a session."""
        user = self._user(request)
        await read_body(request, Nothing, default=ANSWER_EMPTY)
        self._count_session(user)
        session_id = str(new_packet_id())
        props = await self._dialogue(user, session_id).begin()
        headers = {"Location": f"/sessions/{session_id}/props", "ETag": _etag(props)}
        return JSONResponse({"id": session_id, "contextProps": props.document}, 201, headers)

    async def props(self, request: Request) -> Response:
        """Return what a frontend shows."""
        props = await (await self._known(request)).props()
        return JSONResponse(props.document, headers={"ETag": _etag(props), "Cache-Control": "no-store"})

    async def say(self, request: Request) -> Response:
        """Handle onSend: return the agent's answer."""
        dialogue = await self._known(request)
        message = await read_body(request, NewMessage)
        output = await dialogue.say(message.content, revision=revision_of(request))
        return _changed(output.props, response=output.response)

    async def compress(self, request: Request) -> Response:
        """Handle onCompress."""
        dialogue = await self._known(request)
        await read_body(request, Nothing, default=ANSWER_EMPTY)
        return _changed(await dialogue.compress(revision=revision_of(request)))

    async def clear(self, request: Request) -> Response:
        """Handle onClear."""
        dialogue = await self._known(request)
        await read_body(request, Nothing, default=ANSWER_EMPTY)
        return _changed(await dialogue.clear(revision=revision_of(request)))

    async def events(self, request: Request) -> Response:
        """Stream the props, and again whenever this process changes them."""
        dialogue, user = await self._known(request), self._user(request)
        if self._streams[user] >= MOST_STREAMS:
            raise RequestRefused(429, "TOO_MANY", f"{MOST_STREAMS} streams are open: close one")
        return EventSourceResponse(self._counted(user, dialogue), send_timeout=30)

    async def _counted(self, user: str, dialogue: Dialogue) -> AsyncIterator[ServerSentEvent]:
        self._streams[user] += 1
        try:
            async for event in _events(dialogue):
                yield event
        finally:
            self._streams[user] -= 1

    def _count_session(self, user: str) -> None:
        """Count a new session of a user.

        Raise Refusal when the user has begun too many within the hour.
        """
        begun, now = self._begun[user], time.monotonic()
        while begun and now - begun[0] > _HOUR_SECONDS:
            begun.popleft()
        if len(begun) >= MOST_SESSIONS:
            raise RequestRefused(
                429, "TOO_MANY", f"{MOST_SESSIONS} sessions were begun within an hour: use one of them"
            )
        begun.append(now)

    async def _known(self, request: Request) -> Dialogue:
        session_id = checked_id("id", request.path_params["id"])
        dialogue = self._dialogue(self._user(request), session_id)
        if not await dialogue.exists():
            raise UnknownSession(session_id)
        return dialogue

    def _dialogue(self, user: str, session_id: str) -> Dialogue:
        dialogue = self._dialogues.get((user, session_id))
        if dialogue is None:
            dialogue = Dialogue(self._agent, session_id, self._memory_of(user), tasks=self._tasks)
            self._dialogues[(user, session_id)] = dialogue
        return dialogue

    def _user(self, request: Request) -> str:
        return self._tokens.user_of(request.headers.get("authorization"))


async def _events(dialogue: Dialogue) -> AsyncIterator[ServerSentEvent]:
    async for props in dialogue.changes():
        yield ServerSentEvent(orjson.dumps(props.document).decode(), event=PROPS_EVENT, id=str(props.revision))


def _changed(props: Props, **more: str) -> Response:
    return JSONResponse({**more, "contextProps": props.document}, headers={"ETag": _etag(props)})


def _etag(props: Props) -> str:
    return f'"{props.revision}"'

"""Identify the caller: a user by the bearer token of the request."""

import hmac
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self, TypeVar
from weakref import WeakValueDictionary

import orjson
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from apc_agents import AgentError
from apc_agents.ports import checked_id
from apc_agents.task_port import TaskStore
from apc_bus.settings import ConsoleSettings
from apc_bus.telemetry import get_logger
from apc_cli.chat import chat_agent, open_memory, running_tasks
from apc_cli.errors import InputUnusable
from apc_contracts.errors import PacketRefused
from apc_contracts.identity.ids import new_packet_id
from apc_contracts.limits import DocumentLimits
from apc_contracts.wire.parsing import refusal_of as parsing_refusal_of
from apc_contracts.wire.strict_json import read_strict_json
from apc_minds.context import (
    ContextPressureError,
    ContextStale,
    InvalidTransition,
    MessageTooLong,
    TurnInvalid,
)
from apc_minds.llm import Dialogue, DialogueBusy, LLMAgent, LLMError, ModelAway, Props
from apc_minds.memory import BaseMemoryStore, MemoryArgumentInvalid, MemoryUnavailable, UnknownSession
from apc_web.http import listen_address, make_server, open_listeners
from apc_web.local_names import is_loopback

LOCAL_USER = "local"
"""The user of every caller where no tokens are set."""
MIN_TOKEN_LENGTH = 16


class Unauthorized(Exception):
    """There is no token, or it is unknown."""


class Tokens:
    """Tokens by user; without any, every caller is LOCAL_USER."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tokens = dict(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @classmethod
    def read(cls, setting: SecretStr | None) -> Self:
        """Parse `user=token,user=token`, the form of APC_CHAT_TOKENS. Raises InputUnusable; never shows a token."""
        tokens: dict[str, str] = {}
        for number, part in enumerate(setting.get_secret_value().split(",") if setting else (), start=1):
            user, is_there, token = part.strip().partition("=")
            if not (user and is_there):
                raise InputUnusable(f"APC_CHAT_TOKENS, part {number}: write user=token,user=token")
            if len(token) < MIN_TOKEN_LENGTH:
                raise InputUnusable(f"APC_CHAT_TOKENS: the token of {user} is shorter than {MIN_TOKEN_LENGTH}")
            tokens[user] = token
        return cls(tokens)

    def user_of(self, authorization: str | None) -> str:
        """Return the user of an Authorization header. Raises Unauthorized."""
        if not self._tokens:
            return LOCAL_USER
        scheme, _, given = (authorization or "").partition(" ")
        if scheme.lower() == "bearer":
            for user, token in self._tokens.items():
                if hmac.compare_digest(token.encode(), given.strip().encode()):
                    return user
        raise Unauthorized


# Error answers to a caller: a status, a code, the field, one sentence.

_log = get_logger("apc_cli")


@dataclass(slots=True)
class RequestRefused(Exception):
    """A request that cannot be used."""

    status: int
    code: str
    message: str
    field: str | None = None

    def response(self) -> JSONResponse:
        """Return `{"error": {"code", "message", "field"}}`."""
        error = {"code": self.code, "message": self.message}
        if self.field is not None:
            error["field"] = self.field
        headers = {"WWW-Authenticate": "Bearer"} if self.status == 401 else None
        return JSONResponse({"error": error}, self.status, headers)


def refusal_of(error: Exception) -> RequestRefused:
    """Return the answer to the caller for an error.

    What failed behind the service goes to its log, not to the caller.
    """
    match error:
        case RequestRefused():
            return error
        case HTTPException(status_code=405):
            return RequestRefused(405, "NO_SUCH_METHOD", "this path does not take this method")
        case HTTPException():
            return RequestRefused(
                error.status_code, "NO_SUCH_PATH", "there is no such path: docs/how-to/chat.md lists those there are"
            )
        case Unauthorized():
            return RequestRefused(401, "UNAUTHORIZED", "send Authorization: Bearer TOKEN")
        case UnknownSession():
            return RequestRefused(404, "UNKNOWN_SESSION", "there is no such session: POST /sessions begins one", "id")
        case ContextStale():
            return RequestRefused(
                409, "STALE", "the session has changed since you read it: read its props again", "If-Match"
            )
        case DialogueBusy():
            return RequestRefused(409, "BUSY", "the agent is still answering: wait for its answer")
        case ContextPressureError() | InvalidTransition():
            return RequestRefused(
                409, "NOT_NOW", "the session takes this not in the state that it is in: read its props"
            )
        case MessageTooLong():
            return RequestRefused(413, "TOO_LONG", f"{error.tokens} tokens, {error.limit} fit: shorten it", "content")
        case TurnInvalid():
            return RequestRefused(422, "INVALID", str(error), "content")
        case MemoryArgumentInvalid():
            return RequestRefused(422, "INVALID", str(error), error.place)
        case ModelAway() | MemoryUnavailable():
            return RequestRefused(503, "AWAY", "the service cannot answer now: try again later")
        case LLMError():
            return RequestRefused(502, "NO_ANSWER", "the agent gave no answer; the session is as it was")
        case _:
            return RequestRefused(500, "FAILED", "the service failed; the session is as it was")


async def answer_refusal(request: Request, error: Exception) -> JSONResponse:
    """Return the response to a request that raised."""
    refusal = refusal_of(error)
    if refusal.status >= 500:
        _log.error("chat_request_failed", path=request.url.path, error=f"{type(error).__name__}: {error}")
    return refusal.response()


REFUSED = (RequestRefused, Unauthorized, AgentError, HTTPException)
"""The exceptions that a route may raise."""


# The bodies of requests.

MAX_BODY_BYTES = 1_048_576
MAX_DIGITS = 18
"""Digits of a revision; a longer one cannot exist."""

BodyT = TypeVar("BodyT", bound=BaseModel)


class Body(BaseModel):
    """A JSON object with no other fields."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewMessage(Body):
    """A user's message."""

    content: Annotated[str, Field(min_length=1)]


class Nothing(Body):
    """No fields: the server decides how a context is compressed."""


async def read_body(request: Request, model: type[BodyT], *, default: bytes | None = None) -> BodyT:
    """Return the body of a request; `default` stands for an empty one. Raises Refusal: 413, 422 with the field."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RequestRefused(413, "TOO_LONG", f"more than {MAX_BODY_BYTES} bytes: shorten it", "$")
    document = bytes(body) or default or b""
    try:
        read_strict_json(document, DocumentLimits(size_bytes=MAX_BODY_BYTES))  # a duplicate key is never an accident
        return model.model_validate_json(document)
    except PacketRefused as refused:
        raise RequestRefused(422, "INVALID", refused.message, refused.path) from refused
    except ValidationError as error:
        first = parsing_refusal_of(error)
        is_unknown = error.errors()[0]["type"] == "extra_forbidden"
        raise RequestRefused(
            422, "INVALID", "unknown field: remove it" if is_unknown else first.message, first.path
        ) from error


def revision_of(request: Request) -> int | None:
    """Return the revision that If-Match names, as ETag gave it. Raises Refusal."""
    given = request.headers.get("if-match")
    if given is None or given == "*":
        return None
    revision = given.strip().strip('"')
    if not (revision.isascii() and revision.isdecimal()):
        raise RequestRefused(422, "INVALID", "give the ETag of the props that you have read", "If-Match")
    return int(revision[:MAX_DIGITS])


# The routes of the frontend contract.
#
# A frontend receives props, never a prompt. Source: docs/reference/conformance/context-engineering.md, sections 1.2,
# 5.3 and 7.3.

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


# Run the frontend contract as a service.


@dataclass(frozen=True, slots=True)
class ChatServiceForm:
    """The options that the operator gave."""

    agent: str | None
    listen: str


async def serve_chat(form: ChatServiceForm) -> None:
    """Serve until SIGTERM, then finish running requests.

    Raises:
        InputUnusable: listen is no HOST:PORT, another process listens there, or it is no loopback address while no
            tokens are set.
    """
    agent, tokens = chat_agent(form.agent), Tokens.read(ConsoleSettings().chat_tokens)
    host, port = listen_address(form.listen)
    if not tokens and not is_loopback(host):
        message = "others could reach it; set APC_CHAT_TOKENS, or listen on 127.0.0.1"
        raise InputUnusable(f"--listen {form.listen}: {message}")
    async with open_memory(LOCAL_USER) as memory, running_tasks(agent, memory) as tasks:
        app = make_app(agent, memory.of, tokens, tasks)
        with open_listeners(host, port) as listeners:
            await make_server(app, host, port).serve(listeners)

"""Who may ask: tokens of callers, of the door's own file or an issuer, or certificates; limits of requests; statuses.

Nothing of a request is read before its token is known, and nothing is stored. A token is of one door: the digest in the
file has the door's own prefix, and an issuer's token names the door as its audience.
"""

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import jwt
import orjson
from a2a.server.context import ServerCallContext
from a2a.server.routes import DefaultServerCallContextBuilder
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.authentication import SimpleUser
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apc_a2a.handler import CALL, Call
from apc_bus.database import DATABASE_AWAY
from apc_bus.telemetry import get_logger
from apc_client import Callers
from apc_contracts.errors import InputUnusable
from apc_web.access import LARGEST_FILE, read_private, write_private
from apc_web.errors import ApiError
from apc_web.http import CLIENT_NAMES

_log = get_logger("apc_a2a")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,56}$"
_PREFIX = b"apc-a2a\x00"
_LONGEST_TOKEN = 8_192
_ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "RS256", "PS256")


class CallerTokens(BaseModel):
    """The tokens of one caller: label -> digest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Mapping[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = {}


class CallersDocument(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    callers: Mapping[Annotated[str, Field(pattern=_NAME)], CallerTokens] = {}


def check_caller_name(name: str) -> None:
    """Raise InputUnusable for a name that no caller can have."""
    if not re.fullmatch(_NAME, name):
        raise InputUnusable(f"{name[:80]!r}: the name of a caller has 1 to 57 letters, digits, _ . or -")


def digest_of(token: str) -> str:
    """Return what the file has of a token. That of the web console's file is another one: neither is of use there."""
    return sha256(_PREFIX + token.encode()).hexdigest()


def read_callers(path: Path) -> CallersDocument:
    """Return what the file holds; nothing when there is none. Raises InputUnusable."""
    try:
        return CallersDocument.model_validate_json(read_private(path, LARGEST_FILE))
    except FileNotFoundError:
        return CallersDocument()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputUnusable(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def write_callers(path: Path, document: CallersDocument) -> None:
    """Write the file in one step, for its owner alone. Raises InputUnusable."""
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
    try:
        write_private(path, orjson.dumps(document.model_dump(mode="json"), option=options).decode())
    except OSError as error:
        raise InputUnusable(f"cannot write {path}: {error.strerror}") from error


def with_token(document: CallersDocument, name: str, label: str) -> tuple[CallersDocument, str]:
    """Return the file's content with a new token of a caller, and the token. Raises InputUnusable for the name."""
    check_caller_name(name)
    token = f"apc_a2a_{secrets.token_urlsafe(32)}"
    before = document.callers.get(name, CallerTokens()).tokens
    callers = {**document.callers, name: CallerTokens(tokens={**before, label: digest_of(token)})}
    return CallersDocument(callers=callers), token


class CallersFile:
    """The tokens as the file has them now; while it cannot be used, nobody is known.

    Args:
        path: a file that only its owner can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] | None = None
        self._names: dict[str, str] = {}

    def name_of(self, token: str) -> str | None:
        """Return the caller of a token."""
        try:
            state = os.stat(self._path)
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                callers = read_callers(self._path).callers
                self._names = {digest: name for name, one in callers.items() for digest in one.tokens.values()}
                self._seen = seen
        except (OSError, InputUnusable) as error:
            if self._seen != ():
                _log.error("callers_unusable", file=str(self._path), error=str(error))
            self._seen, self._names = (), {}
        return self._names.get(digest_of(token))


class Issuer:
    """Whose JSON Web Tokens are taken, and for which door.

    Args:
        issuer: their `iss`.
        audience: their `aud`.
        keys: a file with the issuer's public keys.

    Raises:
        InputUnusable: the file holds no such keys.
    """

    def __init__(self, issuer: str, audience: str, keys: Path) -> None:
        self._issuer = issuer
        self._audience = audience
        try:
            found = jwt.PyJWKSet.from_json(keys.read_text(encoding="utf-8")).keys
        except (OSError, ValueError, jwt.PyJWTError) as error:
            raise InputUnusable(f"{keys}: no JSON Web Key Set: {error}") from error
        # A symmetric key there would let every door, and every reader of the file, issue tokens.
        self._keys = {one.key_id: one for one in found if one.algorithm_name in _ALGORITHMS}

    def name_of(self, token: str) -> str | None:
        """Return the caller that a token names; None for one that is not good here and now."""
        try:
            key = self._keys.get(jwt.get_unverified_header(token).get("kid"))
            if key is None:
                return None
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        return str(claims["sub"])


class CallContexts(DefaultServerCallContextBuilder):
    """Gives the handler the call, so that it can say how the answer is sent."""

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of a request."""
        context = super().build(request)
        context.state["headers"].pop("authorization", None)
        context.state[CALL] = request.scope.get("apc_a2a", Call())
        return context


_PUBLIC: Final = "/.well-known/"
_HEALTH: Final = "/healthz"
_JSON_TYPES: Final = frozenset({"application/json", "application/a2a+json"})


class Gatekeeper:
    """Lets known callers through, with bodies of a bounded size, and answers 401, 413, 429 and 503.

    Args:
        app: gets the requests that pass; `scope["user"]` is the caller.
        callers: those who are registered for this door.
        file: their tokens.
        issuer: whose tokens are taken too.
        most_bytes: of a body.
    """

    def __init__(
        self, app: ASGIApp, callers: Callers, file: CallersFile, issuer: Issuer | None, most_bytes: int
    ) -> None:
        self._app = app
        self._callers = callers
        self._file = file
        self._issuer = issuer
        self._most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http" or scope["path"].startswith(_PUBLIC) or scope["path"] == _HEALTH:
            await self._app(scope, receive, send)
            return
        refusal: Response | None = None
        try:
            name = await self._known(scope)
            refusal = _unknown(scope) if name is None else None
        except DATABASE_AWAY:
            name, refusal = None, refused(scope, 503, "the log does not answer: come again", retry=5)
        body, read = b"", None
        if refusal is None:
            body, refusal = await self._body(scope, receive)
        if refusal is None:
            read, refusal = _read(scope, body)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        call = Call()
        scope = {**scope, "user": SimpleUser(str(name)), "apc_a2a": call, _READ: read}
        await self._app(scope, _replaying(body, receive), _Answering(call, scope, receive, send).send)

    async def _known(self, scope: Scope) -> str | None:
        """Return the registered caller whom the token or the certificate of a request names, or both.

        Raises what `DATABASE_AWAY` names.
        """
        given, certified = Headers(scope=scope).getlist("authorization"), scope.get(CLIENT_NAMES, ())
        named = {*certified, *([self._name_of(given)] if given else ())}
        name: str | None = named.pop() if len(named) == 1 else None
        if name is None or not re.fullmatch(_NAME, name):
            return None
        try:
            await self._callers.client(name)
        except InputUnusable as error:
            _log.warning("caller_unregistered", caller=name, reason=str(error))
            return None
        return name

    def _name_of(self, given: Sequence[str]) -> str | None:
        """Return whose token the headers `Authorization` have."""
        scheme, _, token = given[0].partition(" ") if len(given) == 1 else ("", "", "")
        token = token.strip()
        if scheme.lower() != "bearer" or not token.isascii() or not 0 < len(token) <= _LONGEST_TOKEN:
            return None
        name = self._file.name_of(token)
        return self._issuer.name_of(token) if name is None and self._issuer is not None else name

    async def _body(self, scope: Scope, receive: Receive) -> tuple[bytes, Response | None]:
        """Return the whole body, or why it is not taken."""
        too_large = refused(scope, 413, f"a request has at most {self._most_bytes} bytes")
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length[:20]) > self._most_bytes:
            return b"", too_large
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return b"", Response(status_code=400)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most_bytes:
                return b"", too_large
            more = message.get("more_body", False)
        return b"".join(parts), None


_READ: Final = "apc_a2a_json"


class ReadRequest(Request):
    """A request whose JSON the gatekeeper has read: what was checked is what is used."""

    async def json(self) -> Any:
        """Return the body as it was read."""
        return self.scope[_READ]


def _read(scope: Scope, body: bytes) -> tuple[Any, Response | None]:
    """Return the JSON of a body, or the answer to one that is none, nests too deep, or has another type."""
    is_rpc = _is_rpc(scope)
    kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
    if scope["method"] != "POST" or not (body or is_rpc):
        return None, None
    if kind not in _JSON_TYPES:
        wanted = "application/json" if is_rpc else "application/a2a+json"
        return None, refused(scope, 415, f"Incompatible content types: send Content-Type: {wanted}")
    try:
        return orjson.loads(body), None  # refuses what nests deeper than 1,024, which Python's own takes for minutes
    except orjson.JSONDecodeError:
        return None, refused(scope, 400, "Parse error: the body is no JSON, or nests too deep")


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return what gives the body, and then whatever the connection says."""
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return given.pop() if given else await receive()

    return replay


class _Answering:
    """Sends an answer, or in its place the status that the call was given meanwhile."""

    def __init__(self, call: Call, scope: Scope, receive: Receive, send: Send) -> None:
        self._call = call
        self._connection = scope, receive, send
        self._is_replaced = False
        self._has_begun = False

    async def send(self, message: Message) -> None:
        """Send a part of the answer."""
        call, (scope, receive, send) = self._call, self._connection
        if call.status is not None and not self._has_begun:
            if not self._is_replaced:
                self._is_replaced = True
                await refused(scope, call.status, call.reason, retry=call.retry_seconds)(scope, receive, send)
            return
        self._has_begun = True
        await send(message)


# Errors of HTTP, in the form of the binding that was asked: an error of JSON-RPC, or google.rpc.Status as
# https://google.aip.dev/193 has it. Both name a reason for programs.

JSON_RPC: Final = "/a2a/jsonrpc"


class _Kind(NamedTuple):
    """What a status is called."""

    rpc_code: int
    status: str
    """Of google.rpc.Code."""
    reason: str


_KINDS: Final[Mapping[int, _Kind]] = {
    400: _Kind(-32700, "INVALID_ARGUMENT", "PARSE_ERROR"),
    401: _Kind(-32000, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    403: _Kind(-32000, "PERMISSION_DENIED", "FORBIDDEN"),
    404: _Kind(-32600, "NOT_FOUND", "NO_SUCH_PATH"),
    405: _Kind(-32600, "UNIMPLEMENTED", "METHOD_NOT_ALLOWED"),
    413: _Kind(-32600, "INVALID_ARGUMENT", "TOO_LARGE"),
    415: _Kind(-32005, "INVALID_ARGUMENT", "CONTENT_TYPE_NOT_SUPPORTED"),
    421: _Kind(-32000, "INVALID_ARGUMENT", "WRONG_HOST"),
    429: _Kind(-32603, "RESOURCE_EXHAUSTED", "TOO_MANY"),
    503: _Kind(-32603, "UNAVAILABLE", "AWAY"),
}
_FAILED: Final = _Kind(-32603, "INTERNAL", "INTERNAL_ERROR")
_OF_PROTOCOL: Final = frozenset({"CONTENT_TYPE_NOT_SUPPORTED"})


def refused(
    scope: Scope, status: int, message: str, *, reason: str | None = None, retry: int | None = None
) -> Response:
    """Return an error as the answer to a request.

    Args:
        scope: of the request.
        status: of HTTP; JSON-RPC answers 400 and 415 with 200, as its other errors.
        message: what happened and what to do.
        reason: a word for programs; default that of the status.
        retry: seconds until the client may come again.
    """
    kind = _KINDS.get(status, _FAILED)
    reason = reason or kind.reason
    domain = "a2a-protocol.org" if reason in _OF_PROTOCOL else "apc-bus"
    details = [
        {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": domain, "metadata": {}}
    ]
    headers = {} if retry is None else {"Retry-After": str(retry)}
    if not _is_rpc(scope):
        error = {"code": status, "status": kind.status, "message": message, "details": details}
        return JSONResponse({"error": error}, status, headers)
    asked = scope.get(_READ)
    asked_id = asked.get("id") if isinstance(asked, dict) else None
    body = {
        "jsonrpc": "2.0",
        "id": asked_id if isinstance(asked_id, str | int) else None,
        "error": {"code": kind.rpc_code, "message": message, "data": details},
    }
    return JSONResponse(body, 200 if status in {400, 415} else status, headers)


def refuse(scope: Scope, error: ApiError) -> Response:
    """Return the answer to a request that the server refuses before the door gets it."""
    return refused(scope, error.status, error.detail, reason=error.code)


def _is_rpc(scope: Scope) -> bool:
    return str(scope["path"]).rstrip("/") == JSON_RPC


def _unknown(scope: Scope) -> Response:
    answer = refused(scope, 401, "send Authorization: Bearer TOKEN; `apc caller add` makes one")
    answer.headers["WWW-Authenticate"] = 'Bearer realm="a2a"'
    return answer

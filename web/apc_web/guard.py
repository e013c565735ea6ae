"""What stands in front of the application: who may come through a proxy, and the guard of every request."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apc_web.access import NOBODY, Authority, Caller, say_caller
from apc_web.errors import ApiError
from apc_web.local_token import LocalToken
from apc_web.problems import Refuses, as_problem, problem_response

# What comes through a proxy that ends TLS: from a trusted one alone, and only what reached it by https.


class BehindProxies:
    """Refuses anyone who is not a trusted proxy, and what came to the proxy without TLS.

    The application gets the scheme https, and as client the last address of X-Forwarded-For that is no proxy's.

    Args:
        app: receives the rest.
        proxies: networks of the proxies.
        refuses: makes the answer to who is refused.
    """

    def __init__(
        self, app: ASGIApp, proxies: Sequence[IPv4Network | IPv6Network], refuses: Refuses = as_problem
    ) -> None:
        self._app = app
        self._refuses = refuses
        self._proxies = tuple(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            error = self._error(scope)
            if error is not None:
                await self._refuses(scope, error)(scope, receive, send)
                return
            scope = {**scope, "scheme": "https", "client": (self._client(scope), 0)}
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        """Return who the outermost proxy of ours says it has heard; what stands before that, anybody may write."""
        known = str(scope["client"][0])
        given = ",".join(Headers(scope=scope).getlist("x-forwarded-for"))
        for named in reversed(given.split(",")):
            if not self._is_proxy(known) or not (named := named.strip()):
                break
            known = named
        return known

    def _is_proxy(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._proxies)

    def _error(self, scope: Scope) -> ApiError | None:
        client = scope.get("client")
        if client is None or not self._is_proxy(client[0]):
            return ApiError(403, "NOT_A_PROXY", "this server answers to its trusted proxies alone")
        if Headers(scope=scope).getlist("x-forwarded-proto") != ["https"]:
            return ApiError(403, "NO_TLS", "use https: the proxy must send X-Forwarded-Proto", "X-Forwarded-Proto")
        return None


# The guard in front of the application: who asks, size of the body, and the headers of every answer.
#
# Host, Origin and content type are checked before it (`apc_web.http`). The files of the page need no login;
# everything under /api does. On loopback there is no cookie: cookies ignore ports, so local servers would share them.

CONTENT_SECURITY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; worker-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
)
LARGEST_BODY = 256 * 1024
"""Bytes of a request's body."""
LOOK_AGAIN_SECONDS = 30.0
"""A stream ends when its reader is logged out; it sends something every 15 s."""
HTTPS_ALONE_SECONDS = 365 * 86_400
"""So long a browser asks this name by https alone, once it has done so."""
LOGIN = "/api/v1/login"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessGuard:
    """Passes on what somebody asks who may.

    Args:
        app: the application.
        authority: who may ask; a text is the token of a loopback server.
        clock: seconds that only grow.
    """

    def __init__(self, app: ASGIApp, authority: Authority | str, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._authority = LocalToken(partial(str, authority)) if isinstance(authority, str) else authority
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sending = _Guarded(scope["path"], send, is_https=scope.get("scheme") == "https")
        error, caller = self._judged(scope)
        if error is not None:
            response = problem_response(error)
            challenge = self._authority.challenge()
            if error.status == 401 and challenge is not None:
                response.headers["WWW-Authenticate"] = challenge
            await response(scope, receive, sending)
            return
        say_caller(caller or NOBODY)
        if caller is not None:
            sending.looks_again(self._authority, caller, self._clock)
        # FastAPI reads every cookie, before any route asks for one (CVE-2024-7592).
        kept = [header for header in scope["headers"] if header[0] != b"cookie"]
        await self._app({**scope, "headers": kept}, _Limited(receive), sending)

    def _judged(self, scope: Scope) -> tuple[ApiError | None, Caller | None]:
        """Return why a request is refused, or who sent it."""
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            return _too_large("Content-Length"), None
        path = scope["path"]
        if not (path == "/api" or path.startswith("/api/")):
            return None, None
        server = scope.get("server")
        caller = self._authority.caller_of(headers, None if server is None else server[1])
        if caller is None:
            is_login = path == LOGIN and scope["method"] == "POST" and not isinstance(self._authority, LocalToken)
            return (None if is_login else self._authority.refusal()), None
        if caller.is_by_cookie and scope["method"] not in _READS and "origin" not in headers:
            return ApiError(403, "NO_ORIGIN", "a browser says which page asks: send Origin", "Origin"), None
        return None, caller


class _Guarded:
    """Adds the headers to an answer, and ends it when its reader may not read any more."""

    def __init__(self, path: str, send: Send, *, is_https: bool) -> None:
        self._is_api = path.startswith("/api/")
        self._is_https = is_https
        self._send = send
        self._is_still: Callable[[], bool] | None = None
        self._clock: Callable[[], float] = time.monotonic
        self._looked = 0.0
        self._has_ended = False

    def looks_again(self, authority: Authority, caller: Caller, clock: Callable[[], float]) -> None:
        """Ask from time to time whether the caller may still read."""
        self._is_still = lambda: authority.is_still(caller)
        self._clock, self._looked = clock, clock()

    async def __call__(self, message: Message) -> None:
        """Pass on a part of the answer."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            if self._is_https:
                headers["Strict-Transport-Security"] = f"max-age={HTTPS_ALONE_SECONDS}"
            if self._is_api:
                headers.setdefault("Cache-Control", "no-store")
        elif message["type"] == "http.response.body" and self._is_still is not None:
            if self._clock() - self._looked >= LOOK_AGAIN_SECONDS:
                self._looked = self._clock()
                if not self._is_still():
                    message = {"type": "http.response.body", "body": b"", "more_body": False}
            if self._has_ended:
                raise OSError("the reader was logged out")
            self._has_ended = not message.get("more_body", False)
        await self._send(message)


class _Limited:
    """Receives a request, and ends it when its body is larger than allowed."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._bytes = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            if self._bytes > LARGEST_BODY:
                raise _too_large(None)
        return message


def _too_large(field: str | None) -> ApiError:
    return ApiError(413, "TOO_LARGE", f"a request's body has at most {LARGEST_BODY} bytes", field)

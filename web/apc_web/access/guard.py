"""The guard in front of the application: token, size of the body, and the headers of every answer.

Host, Origin and content type are checked before it (`apc_web.http.server`).

The files of the page need no token; everything under /api does. There is no cookie: cookies ignore ports, so every
local server would share them.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from apc_web.access.token import is_bearer
from apc_web.errors import ApiError
from apc_web.problems import problem_response

CONTENT_SECURITY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; worker-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"
)
LARGEST_BODY = 256 * 1024
"""Bytes of a request's body."""
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessGuard:
    """Passes on what a page of this server asks with its token.

    Args:
        app: the application.
        token: what `/api` wants as Bearer.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if scope["path"].startswith("/api/"):
                    headers.setdefault("Cache-Control", "no-store")
            await send(message)

        error = self._error(scope)
        if error is not None:
            await problem_response(error)(scope, receive, send_guarded)
        else:
            await self._app(scope, _Limited(receive), send_guarded)

    def _error(self, scope: Scope) -> ApiError | None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > LARGEST_BODY:
            return ApiError(413, "TOO_LARGE", f"a request's body has at most {LARGEST_BODY} bytes", "Content-Length")
        is_api = scope["path"] == "/api" or scope["path"].startswith("/api/")
        if is_api and not is_bearer(headers.get("authorization"), self._token):
            return ApiError(
                401, "UNAUTHORIZED", "the token is missing or old: open the link that `apc ui` printed", "Authorization"
            )
        return None


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
                raise ApiError(413, "TOO_LARGE", f"a request's body has at most {LARGEST_BODY} bytes")
        return message

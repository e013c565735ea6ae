"""What comes through a proxy that ends TLS: from a trusted one alone, and only what reached it by https."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from apc_web.errors import ApiError
from apc_web.problems import problem_response


class BehindProxies:
    """Refuses anyone who is not a trusted proxy, and what came to the proxy without TLS.

    Args:
        app: receives the rest.
        proxies: networks of the proxies.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[IPv4Network | IPv6Network]) -> None:
        self._app = app
        self._proxies = tuple(proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            error = self._error(scope)
            if error is not None:
                await problem_response(error)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _error(self, scope: Scope) -> ApiError | None:
        client = scope.get("client")
        address = None if client is None else ip_address(client[0])
        if address is None or not any(address in network for network in self._proxies):
            return ApiError(403, "NOT_A_PROXY", "this server answers to its proxies alone: APC_WEB_TRUSTED_PROXIES")
        if Headers(scope=scope).getlist("x-forwarded-proto") != ["https"]:
            return ApiError(403, "NO_TLS", "use https: the proxy must send X-Forwarded-Proto", "X-Forwarded-Proto")
        return None

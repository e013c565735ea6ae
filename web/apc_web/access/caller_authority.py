"""Who may ask: the token of this start, or accounts."""

from typing import Protocol

from starlette.datastructures import Headers

from apc_web.access.caller import LOCAL, Caller
from apc_web.access.token import is_bearer
from apc_web.errors import ApiError


class Authority(Protocol):
    """Tells who sent a request."""

    def caller_of(self, headers: Headers) -> Caller | None:
        """Return who sent a request with these headers; None = nobody who is known."""
        ...

    def is_still(self, caller: Caller) -> bool:
        """Return whether they are still logged in, with the same role. A stream asks this again and again."""
        ...

    def refusal(self) -> ApiError:
        """Return what somebody unknown is told."""
        ...


class LocalToken:
    """One token for everybody of this machine who can read a file of its user.

    Args:
        token: what `/api` wants as Bearer.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def caller_of(self, headers: Headers) -> Caller | None:
        """Return the local user when the request has the token."""
        return LOCAL if is_bearer(headers.get("authorization"), self._token) else None

    def is_still(self, caller: Caller) -> bool:
        """Return True: the token lives as long as the server."""
        return True

    def refusal(self) -> ApiError:
        """Return where the token is."""
        return ApiError(
            401, "UNAUTHORIZED", "the token is missing or old: open the link that `apc ui` printed", "Authorization"
        )

"""Who asks, and what they may: the guard finds out once, and routes read it here."""

from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from apc_web.errors import ApiError

LOCAL_USER = "local"
"""Anyone who has the token of a loopback server."""


class AccountRole(StrEnum):
    """What a person may do here; each includes the ones before it."""

    VIEWER = "viewer"
    """Columns without bodies, and without any text that tells of them."""
    READER = "reader"
    """Bodies, facts and proofs too."""
    OPERATOR = "operator"
    """Acts too, and the chat."""

    def includes(self, other: "AccountRole") -> bool:
        """Return whether this role may do what the other may."""
        order = list(AccountRole)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent the request.

    Args:
        name: the account; LOCAL_USER without accounts.
        role: what they may do.
        is_by_cookie: whether a browser sent the proof by itself, as other pages could make it do.
        proof: what the guard recognises the login by when it looks again.
    """

    name: str
    role: AccountRole
    is_by_cookie: bool = False
    proof: str = ""

    @property
    def person(self) -> str | None:
        """Return in whose name acts are done; None = the operator of this server."""
        return None if self.name == LOCAL_USER else self.name


LOCAL = Caller(LOCAL_USER, AccountRole.OPERATOR)
"""The holder of the token; an application without a guard asks nobody who they are."""
_caller: ContextVar[Caller | None] = ContextVar("apc_web_caller", default=None)
NOBODY = Caller("", AccountRole.VIEWER)
"""Who has not logged in."""


def caller() -> Caller:
    """Return who sent the request that is being answered."""
    return _caller.get() or LOCAL


def say_caller(found: Caller) -> None:
    """Set who sent the request of this task."""
    _caller.set(found)


def require(role: AccountRole) -> None:
    """Raise ApiError (403) when the caller has not this role."""
    if not caller().role.includes(role):
        raise ApiError(403, "NO_ROLE", f"this needs the role {role}; yours is {caller().role}")

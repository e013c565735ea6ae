"""Accounts: logins with a password, kept on the server; API tokens; both only as long as the file has them."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers

from apc_web.access.caller import AccountRole, Caller
from apc_web.access.users import MOST_PASSWORD, UsersFile, is_password
from apc_web.errors import ApiError

COOKIE = "__Host-apc"
LONGEST_SECONDS = 12 * 3_600.0
IDLE_SECONDS = 3_600.0
MOST_LOGINS = 10_000
"""Logins that are open at the same time; the oldest ends first."""
_FREE_FAILURES = 5
_LONGEST_PAUSE = 60.0
_MOST_NAMES = 10_000
_MOST_WAITING = 8
"""Passwords that wait to be hashed: each costs 64 MiB for some 50 ms."""


@dataclass(slots=True)
class _Login:
    name: str
    role: AccountRole
    begun: float
    used: float


@dataclass(slots=True)
class _Failures:
    count: int
    until: float


class Accounts:
    """People with a role each.

    Args:
        users: the file.
        clock: seconds that only grow.
    """

    def __init__(self, users: UsersFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._logins: dict[str, _Login] = {}
        self._failures: dict[str, _Failures] = {}
        self._hashing = asyncio.Semaphore(1)
        self._waiting = 0

    def caller_of(self, headers: Headers) -> Caller | None:
        """Return who sent a request: by API token, else by cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            found = self._users.of_token(token.strip()) if scheme.lower() == "bearer" else None
            return None if found is None else Caller(found[0], found[1].role, proof=f"token {_digest(token.strip())}")
        cookie = _cookie_of(headers)
        if cookie is None:
            return None
        proof = _digest(cookie)
        login = self._login(proof)
        if login is None:
            return None
        login.used = self._clock()
        return Caller(login.name, login.role, is_by_cookie=True, proof=proof)

    def is_still(self, caller: Caller) -> bool:
        """Return whether the login or token still stands, with the same role."""
        user = self._users.find(caller.name)
        if user is None or user.role is not caller.role:
            return False
        if caller.is_by_cookie:
            return self._login(caller.proof) is not None
        return caller.proof.removeprefix("token ") in user.tokens.values()

    def refusal(self) -> ApiError:
        """Return that one must log in."""
        return ApiError(401, "LOGIN", "log in: nobody is logged in here, or not any more")

    async def login(self, name: str, password: str) -> str:
        """Return the cookie of a new login. Raises ApiError: wrong (401), or too many attempts (429)."""
        self._check_throttle(name)
        if self._waiting >= _MOST_WAITING:
            raise ApiError(429, "TOO_MANY", "too many logins at the same time: try again in a moment")
        self._waiting += 1
        try:
            async with self._hashing:
                user = self._users.find(name)
                is_right = len(password) <= MOST_PASSWORD and await asyncio.to_thread(is_password, user, password)
        finally:
            self._waiting -= 1
        if user is None or not is_right:
            self._count_failure(name)
            raise ApiError(401, "WRONG_LOGIN", "this name and password do not belong together")
        self._failures.pop(name, None)
        cookie, now = secrets.token_urlsafe(32), self._clock()
        self._drop_ended()
        while len(self._logins) >= MOST_LOGINS:
            self._logins.pop(next(iter(self._logins)))
        self._logins[_digest(cookie)] = _Login(name, user.role, now, now)
        return cookie

    def logout(self, caller: Caller) -> None:
        """End the login of a caller."""
        self._logins.pop(caller.proof, None)

    def _login(self, proof: str) -> _Login | None:
        """Return an open login whose account still has its role; one that has ended is forgotten."""
        login = self._logins.get(proof)
        if login is None:
            return None
        user = self._users.find(login.name)
        if self._is_over(login) or user is None or user.role is not login.role or user.password is None:
            del self._logins[proof]
            return None
        return login

    def _is_over(self, login: _Login) -> bool:
        now = self._clock()
        return now - login.begun >= LONGEST_SECONDS or now - login.used >= IDLE_SECONDS

    def _drop_ended(self) -> None:
        for proof in [proof for proof, login in self._logins.items() if self._is_over(login)]:
            del self._logins[proof]

    def _check_throttle(self, name: str) -> None:
        failures = self._failures.get(name)
        if failures is not None and self._clock() < failures.until:
            raise ApiError(429, "TOO_MANY", "too many wrong passwords for this name: try again in a minute")

    def _count_failure(self, name: str) -> None:
        failures = self._failures.pop(name, None) or _Failures(0, 0.0)
        failures.count += 1
        extra = failures.count - _FREE_FAILURES
        if extra >= 0:
            failures.until = self._clock() + min(2.0**extra, _LONGEST_PAUSE)
        while len(self._failures) >= _MOST_NAMES:
            self._failures.pop(next(iter(self._failures)))
        self._failures[name] = failures


def _cookie_of(headers: Headers) -> str | None:
    """Return the login's cookie; None when it is not there, or there twice."""
    found = []
    for header in headers.getlist("cookie"):
        try:
            found += [morsel.value for name, morsel in SimpleCookie(header).items() if name == COOKIE]
        except CookieError:
            return None
    return found[0] if len(found) == 1 else None


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()

"""Who asks, and what they may: callers, their roles, and accounts; the token of a loopback server is beside it.

The guard finds out once who sent a request, and routes read it here.
"""

import asyncio
import functools
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Protocol

import orjson
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers

from apc_bus.folders import make_private_folder
from apc_bus.settings import sources
from apc_bus.telemetry import get_logger
from apc_contracts.errors import InputUnusable
from apc_web.errors import ApiError
from apc_web.throttle import LoginThrottle

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
        """In whose name acts are done; None = the operator of this server."""
        return None if self.name == LOCAL_USER else self.name


LOCAL = Caller(LOCAL_USER, AccountRole.OPERATOR)
"""The holder of the token; an application without a guard asks nobody who they are."""
_caller: ContextVar[Caller | None] = ContextVar("apc_web_caller", default=None)
NOBODY = Caller("", AccountRole.VIEWER)
"""Who has not logged in."""


def caller() -> Caller:
    """Return who sent the request that is being answered."""
    return _caller.get() or LOCAL


def say_caller(who: Caller) -> None:
    """Set who sent the request of this task."""
    _caller.set(who)


def require(role: AccountRole) -> None:
    """Raise ApiError (403) when the caller has not this role."""
    if not caller().role.includes(role):
        raise ApiError(403, "NO_ROLE", f"this needs the role {role}; yours is {caller().role}")


# Files for their owner alone.


def write_private(file: Path, text: str) -> None:
    """Write a text that only the owner may read, in one step. Raises OSError."""
    make_private_folder(file.parent)
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    new.replace(file)


def read_private(file: Path, most: int) -> str:
    """Return a text that its owner alone can read and write, and whose owner we are.

    What an engine mounts in /run/secrets is a link in Kubernetes, and may belong to another user; a container has one
    user, so there it is enough that nobody else can write it.

    Raises:
        FileNotFoundError: there is no such file.
        InputUnusable: another user owns it or can read it, it is a link or no file, or it has more than `most` bytes.
    """
    is_mounted = sources.SECRETS in file.parents
    try:
        descriptor = os.open(file, os.O_RDONLY | (0 if is_mounted else os.O_NOFOLLOW) | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputUnusable(f"{file}: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as opened:
        state = os.fstat(descriptor)
        is_own = state.st_uid == os.geteuid() and not state.st_mode & 0o077
        is_ours = is_own or (is_mounted and not state.st_mode & 0o022)
        if not stat.S_ISREG(state.st_mode) or not is_ours or state.st_size > most:
            raise InputUnusable(f"{file}: must be a file of this user that nobody else can read (chmod 600)")
        return opened.read(most).decode(errors="replace")


# The file of the accounts: names, roles, argon2id hashes of passwords, hashes of API tokens. `apc user` writes it. The
# server reads it again when it changes; while it cannot be used, nobody is known.

LARGEST_FILE = 1 << 20
"""Bytes."""
LEAST_PASSWORD = 12
MOST_PASSWORD = 1_024
"""Characters: hashing a longer one would cost more than it gives."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$"
_hasher = PasswordHasher()
_log = get_logger("apc_web")


class UserRecord(BaseModel):
    """One account."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    role: AccountRole
    password: Annotated[str, Field(pattern=r"^\$argon2id\$[\x21-\x7e]{20,300}$")] | None = None
    """None = API tokens alone."""
    tokens: Mapping[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = {}
    """Name -> SHA-256 of the token."""


class UsersDocument(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    users: Mapping[Annotated[str, Field(pattern=_NAME)], UserRecord] = {}


class UsersFile:
    """The accounts as the file has them now.

    Args:
        path: a file that only its owner can read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        _nobody()
        self._seen: tuple[int, ...] = ()
        self._document = UsersDocument()
        self._by_token: dict[str, str] = {}

    def find(self, name: str) -> UserRecord | None:
        """Return the account of a name; None when there is none."""
        return self._now().users.get(name)

    def of_token(self, token: str) -> tuple[str, UserRecord] | None:
        """Return the account of an API token."""
        users = self._now().users
        name = self._by_token.get(sha256(token.encode()).hexdigest())
        return None if name is None else (name, users[name])

    def _now(self) -> UsersDocument:
        try:
            state = os.stat(self._path)
            seen = (state.st_mtime_ns, state.st_size, state.st_ino)
            if seen != self._seen:
                self._document = read_users(self._path)
                self._by_token = {
                    digest: name for name, user in self._document.users.items() for digest in user.tokens.values()
                }
                self._seen = seen
        except (OSError, InputUnusable) as error:
            _log.error("users_unusable", file=str(self._path), error=str(error))
            self._seen, self._document, self._by_token = (), UsersDocument(), {}
        return self._document


def read_users(path: Path) -> UsersDocument:
    """Return what the file holds. Raises InputUnusable: not there, readable by others, too large, not well formed.

    What an engine mounts in /run/secrets is readable by every user of the container, which has one user; in Kubernetes
    it is a link, which moves when the file changes.
    """
    is_mounted = sources.SECRETS in path.parents
    others, follow = (0o022, 0) if is_mounted else (0o077, os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, os.O_RDONLY | follow | os.O_NONBLOCK)
    except OSError as error:
        raise InputUnusable(f"{path}: {error.strerror}: `apc user add` makes it") from error
    with os.fdopen(descriptor, "rb") as opened:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_mode & others or state.st_size > LARGEST_FILE:
            raise InputUnusable(f"{path}: must be a file of at most 1 MiB that only its owner can read (chmod 600)")
        body = opened.read(LARGEST_FILE)
    try:
        return UsersDocument.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InputUnusable(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def write_users(path: Path, document: UsersDocument) -> None:
    """Write the file in one step, for its owner alone. Raises InputUnusable."""
    body = orjson.dumps(document.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    try:
        write_private(path, body.decode())
    except OSError as error:
        raise InputUnusable(f"cannot write {path}: {error.strerror}") from error


def check_name(name: str) -> None:
    """Raise InputUnusable for a name that no account can have."""
    if not re.fullmatch(_NAME, name) or name == LOCAL_USER:
        raise InputUnusable(f"{name!r}: a name has 1 to 64 letters, digits, _ . @ or -, and is not {LOCAL_USER!r}")


def hash_password(password: str) -> str:
    """Return the argon2id hash of a new password. Raises InputUnusable when it is too short or too long."""
    if not LEAST_PASSWORD <= len(password) <= MOST_PASSWORD:
        raise InputUnusable(f"a password has {LEAST_PASSWORD} to {MOST_PASSWORD} characters")
    return _hasher.hash(password)


def is_password(user: UserRecord | None, password: str) -> bool:
    """Return whether it is the password; takes as long for an account that is not there. Blocks for some 50 ms."""
    known = None if user is None else user.password
    try:
        _hasher.verify(known or _nobody(), password)
    except (VerificationError, InvalidHashError, UnicodeEncodeError):  # the last: half a surrogate pair is no text
        return False
    return known is not None


@functools.cache
def _nobody() -> str:
    """Return a hash to compare with, so that a name that is not there costs the same time as one that is."""
    return _hasher.hash(secrets.token_hex(16))


# Accounts: logins with a password, kept on the server; API tokens; both only as long as the file has them.

COOKIE = "__Host-apc"
LONGEST_SECONDS = 12 * 3_600.0
IDLE_SECONDS = 3_600.0
"""A login ends so long after it began, and so long after it was used last."""
MOST_LOGINS = 10_000
"""Logins that are open at the same time; the oldest ends first."""


@dataclass(slots=True)
class _Login:
    name: str
    role: AccountRole
    password: str
    """The hash by which it was judged: another password ends the login."""
    begun: float
    used: float


class Accounts:
    """People with a role each.

    Args:
        users: the file.
        clock: seconds that only grow.
        throttle: slows down who tries passwords.
    """

    def __init__(
        self,
        users: UsersFile,
        clock: Callable[[], float] = time.monotonic,
        throttle: LoginThrottle | None = None,
    ) -> None:
        self._users = users
        self._clock = clock
        self._logins: dict[str, _Login] = {}
        self._throttle = throttle or LoginThrottle(clock)

    def caller_of(self, headers: Headers, port: int | None = None) -> Caller | None:
        """Return who sent a request: by API token, else by cookie."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme:
            named = self._users.of_token(token.strip()) if scheme.lower() == "bearer" else None
            if named is None:
                return None
            name, account = named
            return Caller(name, account.role, proof=f"token {_digest(token.strip())}")
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
        """Return the error that says to log in."""
        return ApiError(401, "LOGIN", "log in: nobody is logged in here, or not any more")

    def challenge(self) -> str | None:
        """Return None: who logs in sends a password."""
        return None

    async def login(self, name: str, password: str, source: str = "") -> str:
        """Return the cookie of a new login.

        Args:
            source: whose address it comes from (`source_of`).

        Raises:
            ApiError: wrong (401), or too many attempts from there wait (429).
        """
        async with self._throttle.attempt(name, source):
            user = self._users.find(name)
            is_right = len(password) <= MOST_PASSWORD and await asyncio.to_thread(is_password, user, password)
        self._throttle.note(name, source, is_right=is_right)
        if user is None or user.password is None or not is_right:
            raise ApiError(401, "WRONG_LOGIN", "this name and password do not belong together")
        cookie, now = secrets.token_urlsafe(32), self._clock()
        self._drop_ended()
        while len(self._logins) >= MOST_LOGINS:
            self._logins.pop(next(iter(self._logins)))
        self._logins[_digest(cookie)] = _Login(name, user.role, user.password, now, now)
        return cookie

    def logout(self, caller: Caller) -> None:
        """End the login of a caller."""
        self._logins.pop(caller.proof, None)

    def _login(self, proof: str) -> _Login | None:
        """Return an open login whose account still has its role and password; one that has ended is forgotten."""
        login = self._logins.get(proof)
        if login is None:
            return None
        user = self._users.find(login.name)
        if self._is_over(login) or user is None or (user.role, user.password) != (login.role, login.password):
            del self._logins[proof]
            return None
        return login

    def _is_over(self, login: _Login) -> bool:
        now = self._clock()
        return now - login.begun >= LONGEST_SECONDS or now - login.used >= IDLE_SECONDS

    def _drop_ended(self) -> None:
        for proof in [proof for proof, login in self._logins.items() if self._is_over(login)]:
            del self._logins[proof]


def _cookie_of(headers: Headers) -> str | None:
    """Return the login's cookie; None when it is not there, or there twice.

    What `login` sets needs no quotes: none are taken off, which takes Python time by the square of the length.
    """
    parts = (part.partition("=") for header in headers.getlist("cookie") for part in header.split(";"))
    cookies = [value.strip() for name, _, value in parts if name.strip() == COOKIE]
    return cookies[0] if len(cookies) == 1 else None


def _digest(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


class Authority(Protocol):
    """Tells who sent a request."""

    def caller_of(self, headers: Headers, port: int | None = None) -> Caller | None:
        """Return who sent a request with these headers to this port of ours; None = nobody who is known."""
        ...

    def is_still(self, caller: Caller) -> bool:
        """Return whether they are still logged in, with the same role. A stream asks this again and again."""
        ...

    def refusal(self) -> ApiError:
        """Return the error for a request of somebody unknown."""
        ...

    def challenge(self) -> str | None:
        """Return the WWW-Authenticate of such an error: what a proof has to begin with."""
        ...

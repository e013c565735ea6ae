"""The file of the accounts: names, roles, argon2id hashes of passwords, hashes of API tokens.

`apc user` writes it. The server reads it again when it changes; while it cannot be used, nobody is known.
"""

import functools
import os
import re
import secrets
import stat
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import orjson
import structlog
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from apc_bus.settings import sources
from apc_web.access.caller import LOCAL_USER, AccountRole
from apc_web.access.token import write_private
from apc_web.errors import InputUnusable

LARGEST_FILE = 1 << 20
"""Bytes."""
LEAST_PASSWORD = 12
MOST_PASSWORD = 1_024
"""Characters: hashing a longer one would cost more than it gives."""
_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}$"
_hasher = PasswordHasher()
_log = structlog.get_logger("apc_web")


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
        """Return an account."""
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
    except (VerificationError, InvalidHashError):
        return False
    return known is not None


@functools.cache
def _nobody() -> str:
    """Return a hash to compare with, so that a name that is not there costs the same time as one that is."""
    return _hasher.hash(secrets.token_hex(16))

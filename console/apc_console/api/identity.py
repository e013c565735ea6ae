"""Identify the caller: a user by the bearer token of the request."""

import hmac
from collections.abc import Mapping
from typing import Self

from pydantic import SecretStr

from apc_console.errors import InputUnusable

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

"""The token of a loopback server: kept in the data folder, and proven by the page without being sent.

Links outlive a restart, so the token does too. While the server is away another user of the machine may listen on its
port, and open pages ask there: they send a proof that holds for one start of the server on one port, and not the token.
"""

import hmac
import os
import re
import secrets
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers

from apc_bus.folders import create_private_file
from apc_bus.telemetry import get_logger
from apc_contracts.errors import InputUnusable
from apc_web.access import LOCAL, Caller, read_private, write_private
from apc_web.errors import ApiError

_RANDOM_BYTES = 32
_FILE = "ui-token"
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_MOST_BYTES = 64
_LINKS = "ui-*.html"
_LARGEST_LINK = 1 << 16
_log = get_logger("apc_web")


def make_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(_RANDOM_BYTES)


def renew_token(folder: Path) -> list[Path]:
    """Replace the token of a data folder; running servers refuse the old one at once.

    Returns the files that lead to those servers: they have the new token.

    Raises:
        InputUnusable: the folder cannot be written.
    """
    token = make_token()
    try:
        write_private(folder / _FILE, token)
        links = sorted(folder.absolute().glob(_LINKS))
        for link in links:
            write_private(link, re.sub(r"#token=[A-Za-z0-9_-]+", f"#token={token}", read_private(link, _LARGEST_LINK)))
    except OSError as error:
        raise InputUnusable(f"cannot write a new token to {folder}: {error.strerror}") from error
    return links


class KeptToken:
    """The token as the file of a data folder has it now; made at the first start.

    Args:
        folder: the data folder.

    Raises:
        InputUnusable: it cannot be made, or its file may be known to others.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE
        self._seen: tuple[int, ...] = ()
        self._token: str | None = None
        try:
            create_private_file(self._file, make_token().encode())
        except FileExistsError:
            pass
        except OSError as error:
            raise InputUnusable(f"cannot write {self._file}: {error.strerror}") from error
        self._read()

    def __call__(self) -> str | None:
        """Return the token; None while its file cannot be trusted: then nobody is known."""
        try:
            state = os.lstat(self._file)
            seen = (state.st_mtime_ns, state.st_ino, state.st_size, state.st_mode, state.st_uid)
            if seen != self._seen:
                self._read()
                self._seen = seen
        except (OSError, InputUnusable) as error:
            _log.error("token_unusable", file=str(self._file), error=str(error))
            self._seen, self._token = (), None
        return self._token

    def _read(self) -> None:
        try:
            token = read_private(self._file, _MOST_BYTES).strip()
        except InputUnusable as error:
            raise InputUnusable(f"{error}; `apc ui --new-token` replaces it") from error
        if not _TOKEN.fullmatch(token):
            raise InputUnusable(f"{self._file}: this is no token; `apc ui --new-token` replaces it")
        self._token = token


def proof_of(token: str, start: str, port: int | None) -> str:
    """Return what proves to one start of a server, on one port, that the sender has the token."""
    return hmac.new(token.encode(), f"{start}:{port}".encode(), sha256).hexdigest()


class LocalToken:
    """One token for everybody of this machine who can read a file of its user.

    A request has as Bearer its proof, as the page sends it, or the token itself, as a script may.

    Args:
        token: returns the token; None = nobody is known.
    """

    def __init__(self, token: Callable[[], str | None]) -> None:
        self._token = token
        self._start = secrets.token_hex(_RANDOM_BYTES)

    @property
    def token(self) -> str:
        """The token, for the link that only its owner can read. Raises InputUnusable."""
        token = self._token()
        if token is None:
            raise InputUnusable("the token cannot be read; `apc ui --new-token` replaces it")
        return token

    def caller_of(self, headers: Headers, port: int | None = None) -> Caller | None:
        """Return the local user when the request has the token or its proof."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        token = self._token()
        if scheme.lower() != "bearer" or token is None:
            return None
        # Both are compared, so that a wrong one always takes the same time.
        known = [hmac.compare_digest(given.strip().encode(), one.encode()) for one in self._accepted(token, port)]
        return Caller(LOCAL.name, LOCAL.role, proof=_digest(token)) if any(known) else None

    def _accepted(self, token: str, port: int | None) -> tuple[str, str]:
        return token, proof_of(token, self._start, port)

    def is_still(self, caller: Caller) -> bool:
        """Return whether the token is still the one that the caller proved."""
        token = self._token()
        return token is not None and hmac.compare_digest(caller.proof, _digest(token))

    def refusal(self) -> ApiError:
        """Return the error that says where the token is."""
        return ApiError(
            401, "UNAUTHORIZED", "the token is missing or old: open the link that `apc ui` printed", "Authorization"
        )

    def challenge(self) -> str | None:
        """Return what names this start of the server: a proof begins with it."""
        return f'Bearer start="{self._start}"'


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()

"""The token of a loopback server: made at each start, kept in a file of mode 0600, sent by the page as Bearer."""

import hmac
import os
import secrets
from pathlib import Path

from apc_bus.folders import make_private_folder

RANDOM_BYTES = 32


def make_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(RANDOM_BYTES)


def write_private(file: Path, text: str) -> None:
    """Write a text that only the owner may read, in one step. Raises OSError."""
    make_private_folder(file.parent)
    new = file.with_name(f"{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
    new.replace(file)


def is_bearer(header: str | None, token: str) -> bool:
    """Return whether an Authorization header has this token; takes the same time for every wrong one."""
    scheme, _, given = (header or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())

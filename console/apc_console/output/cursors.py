"""Cursors of `--after`: where a page ended. Opaque: only the command that printed one can read it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import orjson

from apc_console.errors import InputUnusable


def write_cursor(*values: int | str) -> str:
    """Return the cursor for these values."""
    return urlsafe_b64encode(orjson.dumps(values)).decode().rstrip("=")


def read_cursor(cursor: str, *types: type) -> list[Any]:
    """Return the values of a cursor, one of each type. Raises InputUnusable for anything else."""
    try:
        values = orjson.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        values = None
    if not isinstance(values, list) or [type(value) for value in values] != list(types):
        raise InputUnusable(f"--after {cursor} is no cursor of this command: take the one that it printed")
    return values

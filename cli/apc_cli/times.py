"""Times that people give at a terminal: how long ago, or when."""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from apc_cli.errors import InputUnusable

_UNITS = {"s": "seconds", "m": "minutes", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(\d{1,6})\s*(s|m|min|h|d|w)")

Since = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Only from this time on: 30m, 1h, 7d ago, or 2026-11-27T09:00Z."),
]


def time_since(text: str, option: str = "--since") -> datetime:
    """Return the time that a text names: how long ago (30m, 1h, 7d), or when; without a zone it is UTC.

    Raises InputUnusable.
    """
    ago = _AGO.fullmatch(text.strip())
    try:
        if ago is not None:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise InputUnusable(f"{option} {text!r} is no time: write 30m, 1h or 7d, or 2026-11-27T09:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

"""The text of one value in a table."""

from datetime import UTC, datetime
from typing import Any

import orjson


def show(value: Any) -> str:
    """Return the text of one table cell."""
    match value:
        case None:
            return ""
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.6g}"
        case list() | tuple() | set() | frozenset():
            return ", ".join(sorted(map(show, value)) if isinstance(value, set | frozenset) else map(show, value))
        case dict():
            return orjson.dumps(value, default=as_text).decode()
        case bytes():
            return value.hex()
        case _:
            return str(value)


def as_text(value: Any) -> Any:
    """Return a value that JSON does not know as text, a set as a list."""
    match value:
        case bytes():
            return value.hex()
        case set() | frozenset():
            return sorted(value)
        case _:
            return str(value)

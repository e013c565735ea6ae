"""What may be stored: JSON, and nothing that JSONB would change or refuse.

Pickle is not supported: whoever may write a pickled value may run code wherever it is read.
"""

import math
from typing import Any, Final

import orjson

from apc_agents.memory.errors import ArgumentInvalid, ValueInvalid

MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_LEVELS: Final = 100
MAX_ID_BYTES: Final = 512
"""Of a session, user, agent, owner or key: three of them stand in one index row, which takes 2.7 kB."""
_LARGEST_INTEGER: Final = 2**63 - 1


def encoded(value: Any, path: str = "$") -> bytes:
    """The value as JSON with sorted keys.

    Raises:
        ValueInvalid: it holds something else than dict, list, tuple, str, int, float, bool or None; a key that is no
            text; a number that is not finite or needs more than 64 bits; U+0000 or half a surrogate pair; more than
            100 levels; or it has more than 16 MiB.
    """
    check_value(value, path)
    document = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    if len(document) > MAX_VALUE_BYTES:
        raise ValueInvalid(path, f"it has {len(document)} bytes and {MAX_VALUE_BYTES} fit: store it as an artifact")
    return document


def check_value(value: Any, path: str = "$", level: int = 0) -> None:
    """Raises ValueInvalid with the path of the first thing that cannot be stored, as `encoded`."""
    if level > MAX_LEVELS:
        raise ValueInvalid(path, f"more than {MAX_LEVELS} levels, or a value inside itself")
    match value:
        case None | bool():
            return
        case str():
            check_text(value, path)
        case int():
            if not -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:
                raise ValueInvalid(path, "an integer of more than 64 bits: store it as text")
        case float():
            if not math.isfinite(value):
                raise ValueInvalid(path, f"{value} is no JSON number: store null or text")
        case dict():
            for key, member in value.items():
                if not isinstance(key, str):
                    raise ValueInvalid(path, f"the key {key!r} is no text")
                check_text(key, f"{path}.{key!r}")
                check_value(member, f"{path}.{key}", level + 1)
        case list() | tuple():
            for number, member in enumerate(value):
                check_value(member, f"{path}[{number}]", level + 1)
        case _:
            raise ValueInvalid(path, f"{type(value).__name__} is not JSON: convert it first")


def check_text(text: str, path: str) -> None:
    """Raises ValueInvalid for what neither UTF-8 nor PostgreSQL can hold."""
    if "\x00" in text:
        raise ValueInvalid(path, "U+0000 cannot be stored: take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueInvalid(path, f"half a surrogate pair at {error.start}: take it out") from None


def checked_id(place: str, value: str) -> str:
    """An id of a session, user, agent, owner or key. Raises ArgumentInvalid."""
    try:
        check_text(value, place)
    except ValueInvalid as error:
        raise ArgumentInvalid(place, str(error)) from None
    if not 0 < len(value.encode()) <= MAX_ID_BYTES:
        raise ArgumentInvalid(place, f"it has {len(value.encode())} bytes: 1 to {MAX_ID_BYTES} are needed")
    return value

"""What may go into a result, a variable or a record: JSON, and what has a JSON form."""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_jsonable_python

from apc_agents.actions.errors import ValueUnserialisable

MAX_LEVELS = 64


def json_value(value: Any, place: str, level: int = 0) -> JsonValue:
    """The JSON form of a value: models, dataclasses, times, UUIDs and enums are written as pydantic does.

    Raises:
        ValueUnserialisable: it has none; the error names the place inside the value.
    """
    if level > MAX_LEVELS:
        raise ValueUnserialisable(place, f"nests deeper than {MAX_LEVELS} levels, or contains itself: flatten it")
    match value:
        case None | bool():
            return value
        case str():
            return _text(value, place)
        case int():
            return int(value)
        case float():
            if not math.isfinite(value):
                raise ValueUnserialisable(place, f"is {value}, which JSON does not know: use null or a text")
            return value
        case Mapping():
            return {_text(key, place): json_value(one, f"{place}.{key}", level + 1) for key, one in value.items()}
        case bytes() | bytearray() | Set():
            pass
        case Sequence():
            return [json_value(one, f"{place}[{number}]", level + 1) for number, one in enumerate(value)]
    return _known_to_pydantic(value, place, level)


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise ValueUnserialisable(place, f"has the key {value!r}, which is no text: JSON keys are texts")
    if "\0" in value:
        raise ValueUnserialisable(place, "holds U+0000, which the database cannot store: take it out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueUnserialisable(place, f"holds half a surrogate pair: {error.reason}") from error
    return str(value)


def _known_to_pydantic(value: Any, place: str, level: int) -> JsonValue:
    message = f"is a {type(value).__name__}, which JSON does not know: make it a text, a number, a list or a dict"
    if isinstance(value, bytes | bytearray | Set):
        raise ValueUnserialisable(place, message)
    try:
        written = to_jsonable_python(value, inf_nan_mode="constants", by_alias=True)
    except (PydanticSerializationError, ValueError) as error:
        raise ValueUnserialisable(place, message) from error
    return json_value(written, place, level + 1)

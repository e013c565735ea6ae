"""What may be stored, sent and shown: JSON, and nothing that JSONB would change or refuse. The one walk over values."""

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final, Protocol

import orjson
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from apc_agents.errors import ValueUnserialisable

MAX_LEVELS: Final = 100
"""A value inside itself is found by it, too."""
_LARGEST_INTEGER: Final = 2**63 - 1


class Stateful(Protocol):
    """What has a JSON document as its state: a handler's ctx, or a dialogue."""

    @property
    def state(self) -> dict[str, Any]:
        """The document."""
        ...


Refusal = Callable[[str, str], Exception]
"""Makes the error of a place (`$.notes[3].at`) and of what is wrong there."""
Conversion = Callable[[Any], Any]
"""Gives a value that is not JSON another form; what it returns is walked in turn. Raises TypeError: it has none."""


def json_value(
    value: Any, place: str, refusal: Refusal, convert: Conversion | None = None, level: int = 0
) -> JsonValue:
    """Return a copy of the value as plain JSON.

    Refused, with the first place where it is: what neither is JSON nor has a form that `convert` knows; bytes and
    sets; a key that is no text; a number that is not finite or needs more than 64 bits; U+0000 or half a surrogate
    pair, which PostgreSQL does not keep; more than 100 levels.

    Raises:
        Exception: what `refusal` makes.
    """
    if level > MAX_LEVELS:
        raise refusal(place, f"more than {MAX_LEVELS} levels, or a value inside itself: flatten it")
    match value:
        case None | bool():
            return value
        case str():
            return checked_text(value, place, refusal)
        case int():
            if not -_LARGEST_INTEGER <= value <= _LARGEST_INTEGER:
                raise refusal(place, "an integer of more than 64 bits: store it as text")
            return int(value)
        case float():
            if not math.isfinite(value):
                raise refusal(place, f"{value} is no JSON number: store null or text")
            return float(value)
        case Mapping():
            return {
                _key(key, place, refusal): json_value(member, f"{place}.{key}", refusal, convert, level + 1)
                for key, member in value.items()
            }
        case bytes() | bytearray() | memoryview() | Set():
            pass
        case Sequence():
            members = enumerate(value)
            return [json_value(one, f"{place}[{number}]", refusal, convert, level + 1) for number, one in members]
        case _ if convert is not None:
            try:
                converted = convert(value)
            except (TypeError, ValueError) as error:
                raise _unknown(value, place, refusal) from error
            return json_value(converted, place, refusal, convert, level + 1)
    raise _unknown(value, place, refusal)


def checked_text(text: object, place: str, refusal: Refusal) -> str:
    """Return the text, if it is one that UTF-8 and PostgreSQL can hold. Raises what `refusal` makes."""
    if not isinstance(text, str):
        raise refusal(place, f"it is {type(text).__name__}: give text")
    if "\x00" in text:
        raise refusal(place, "U+0000 cannot be stored: take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise refusal(place, f"half a surrogate pair at {error.start}: take it out") from None
    return str(text)


def _key(key: object, place: str, refusal: Refusal) -> str:
    if not isinstance(key, str):
        raise refusal(place, f"the key {key!r} is no text")
    return checked_text(key, f"{place}.{key!r}", refusal)


def _unknown(value: object, place: str, refusal: Refusal) -> Exception:
    return refusal(place, f"{type(value).__name__} is not JSON: make it a text, a number, a list or a dict")


# What may go into a result, a variable or a record: JSON, and what has a JSON form.

MAX_RESULT_BYTES = 256 * 1024


def result_value(value: Any) -> JsonValue:
    """Return the JSON form of a result that is kept.

    Raises ValueUnserialisable for what has none, or a too large one.
    """
    result = json_form(value, "result")
    size = len(orjson.dumps(result))
    if size > MAX_RESULT_BYTES:
        message = f"has {size} bytes, {MAX_RESULT_BYTES} are allowed: put it into the artifact store, return its hash"
        raise ValueUnserialisable("result", message)
    return result


def json_form(value: Any, place: str) -> JsonValue:
    """Return the JSON form of a value: models, dataclasses, times, UUIDs and enums are written as pydantic does.

    Raises:
        ValueUnserialisable: it has none; the error names the place inside the value.
    """
    return json_value(value, place, ValueUnserialisable, _as_pydantic_writes)


def _as_pydantic_writes(value: Any) -> Any:
    return to_jsonable_python(value, inf_nan_mode="constants", by_alias=True)


MAX_ERROR_LENGTH = 1_000


def storable(text: str) -> str:
    """Return the beginning of a text, without what the database cannot store."""
    return text[:MAX_ERROR_LENGTH].replace("\0", "\ufffd").encode(errors="replace").decode()

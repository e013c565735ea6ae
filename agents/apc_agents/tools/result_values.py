"""What may go into a result, a variable or a record: JSON, and what has a JSON form."""

from typing import Any

import orjson
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from apc_agents.json_values import json_value as walked
from apc_agents.tools.errors import ValueUnserialisable

MAX_RESULT_BYTES = 256 * 1024


def result_value(value: Any) -> JsonValue:
    """Return the JSON form of a result that is kept.

    Raises ValueUnserialisable for what has none, or a too large one.
    """
    result = json_value(value, "result")
    size = len(orjson.dumps(result))
    if size > MAX_RESULT_BYTES:
        message = f"has {size} bytes, {MAX_RESULT_BYTES} are allowed: put it into the artifact store, return its hash"
        raise ValueUnserialisable("result", message)
    return result


def json_value(value: Any, place: str) -> JsonValue:
    """Return the JSON form of a value: models, dataclasses, times, UUIDs and enums are written as pydantic does.

    Raises:
        ValueUnserialisable: it has none; the error names the place inside the value.
    """
    return walked(value, place, ValueUnserialisable, _as_pydantic_writes)


def _as_pydantic_writes(value: Any) -> Any:
    return to_jsonable_python(value, inf_nan_mode="constants", by_alias=True)

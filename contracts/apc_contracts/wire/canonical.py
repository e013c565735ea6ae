"""The canonical form of JSON (RFC 8785, JCS), at the speed of orjson where both are provably equal."""

import re
from enum import IntEnum
from typing import Any

import orjson
import rfc8785

from apc_contracts.errors import PacketRefused
from apc_contracts.limits import MAX_SAFE_INTEGER

_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
)

# Sorted orjson differs from RFC 8785 in four things: 1.0 comes out as `1.0`, floats of another magnitude with
# another exponent, NaN as `null`, and keys beyond the basic plane (four bytes in UTF-8) in another order.
_BEYOND_BASIC_PLANE = re.compile(rb"[\xf0-\xf4]")
_SMALLEST_PLAIN_FLOAT = 1e-4


class _Floats(IntEnum):
    """What the floats of a value require."""

    PLAIN = 0
    WHOLE = 1
    BEYOND = 2
    """Or something else that only the reference implementation can judge."""


def canonical_json(value: Any) -> bytes:
    """Return the RFC 8785 bytes of a JSON value (str, int, float, bool, None, lists or tuples, dicts with str keys).

    ```python
    assert canonical_json({"b": 1.0, "a": "é"}) == '{"a":"é","b":1}'.encode()
    ```

    1.0 and 1 have one form, so that a canonical hash does not tell floats from integers.

    Raises:
        PacketRefused: MALFORMED at `$`: NaN, infinity, an integer beyond ±(2^53 - 1), a lone surrogate, a key
            that is no string, a value that is not JSON.
    """
    floats = _floats_of(value)
    if floats is _Floats.BEYOND:
        return _by_reference(value)
    try:
        text = orjson.dumps(value if floats is _Floats.PLAIN else _with_whole_numbers(value), option=_OPTIONS)
    except TypeError:  # orjson's JSONEncodeError is one: let the reference name the cause
        return _by_reference(value)
    return text if text.isascii() or not _BEYOND_BASIC_PLANE.search(text) else _by_reference(value)


def _floats_of(value: Any) -> _Floats:
    floats = _Floats.PLAIN
    pending: list[Any] = [(value,)]
    for container in pending:
        for item in container.values() if type(container) is dict else container:
            kind = type(item)
            if kind is str:
                continue
            if kind is dict or kind is list or kind is tuple:
                pending.append(item)
            elif kind is float:
                if not _SMALLEST_PLAIN_FLOAT <= abs(item) <= MAX_SAFE_INTEGER and item != 0:
                    return _Floats.BEYOND
                if item.is_integer():
                    floats = _Floats.WHOLE
            elif kind is not int and kind is not bool and item is not None:
                # A subclass may hide a float from this walk, but not from orjson.
                return _Floats.BEYOND
    return floats


def _with_whole_numbers(value: Any) -> Any:
    """Return the same value with 1.0 as 1, as RFC 8785 writes it."""
    kind = type(value)
    if kind is float:
        return int(value) if value.is_integer() else value
    if kind is dict:
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_with_whole_numbers(item) for item in value]
    return value


def _by_reference(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise PacketRefused("MALFORMED", "$", f"no canonical JSON form ({error}): send plain, finite JSON") from error

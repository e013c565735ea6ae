"""The canonical form of JSON (RFC 8785, JCS), at the speed of orjson where the two are provably equal."""

import re
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

# Sorted orjson differs from RFC 8785 in four things only: it writes 1.0 as `1.0` and small or big floats with another
# exponent, NaN as `null`, and orders keys beyond the basic plane (four bytes in UTF-8) by code point instead of
# UTF-16 unit. A number in its output follows the start or one of `:,[`; a hit inside a string only costs time.
_WHOLE_FLOAT = re.compile(rb"(?:\A|[:,\[])-?[0-9]+\.0(?![0-9])")
_NOT_PROVABLY_EQUAL = re.compile(
    rb"(?:\A|[:,\[])-?[0-9]+(?:\.0(?![0-9])|(?:\.[0-9]+)?e)|(?:\A|[:,\[])null|[\xf0-\xf4]"
)


def canonical_json(value: Any) -> bytes:
    """The RFC 8785 bytes of a JSON value (str, int, float, bool, None, lists or tuples, dicts with str keys).

    1.0 and 1 have one form, so that a canonical hash does not tell floats from integers.

    Raises:
        PacketRefused: MALFORMED at `$`: NaN, infinity, an integer beyond ±(2^53 - 1), a lone surrogate, a key that
            is no string, a value that is not JSON.
    """
    try:
        text = orjson.dumps(value, option=_OPTIONS)
        if _WHOLE_FLOAT.search(text):
            text = orjson.dumps(_with_whole_numbers(value), option=_OPTIONS)
    except TypeError:  # orjson's JSONEncodeError is one: let the reference name the cause
        return _by_reference(value)
    return _by_reference(value) if _NOT_PROVABLY_EQUAL.search(text) else text


def _with_whole_numbers(value: Any) -> Any:
    """The same value with 1.0 as 1: what RFC 8785 writes."""
    kind = type(value)
    if kind is float:
        return int(value) if value.is_integer() and abs(value) <= MAX_SAFE_INTEGER else value
    if kind is dict:
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if kind is list or kind is tuple:
        return [_with_whole_numbers(item) for item in value]
    return value


def _by_reference(value: Any) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise PacketRefused(
            "MALFORMED", "$", f"no canonical JSON form ({error}): send plain, finite JSON"
        ) from error

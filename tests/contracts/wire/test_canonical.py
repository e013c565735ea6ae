"""The fast canonical form is the reference's, for every JSON value."""

from typing import Any
from uuid import UUID

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from apc_contracts import PacketRefused, canonical_json

INTEGERS = st.integers(-(2**53) + 1, 2**53 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [1.0, -0.0, 1e16, 1e21, 1e-4, 9.9e-5, 1e-5, 1e-6, 1e-7, 2.0**53, 2.0**53 - 1, 0.1, 123456789.125]
)
TEXTS = st.text() | st.sampled_from(
    ["\x00\x01\x1f\x7f\x80", '\b\t\n\f\r"\\/', "😀", "\ue000", "\uffff", ",1.0", ":1e5", "null"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=20,
)


@given(VALUES)
@example({"\ue000": 1, "😀": 2})
@example({"a": [1.0, {"b": -0.0}], "c": None})
@example([1e-5, 0.5])
def test_equals_the_reference(value: Any) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": 2.0}, b'{"a":2,"b":1}'),
        ([1e21, 1e-7, 0.000001], b"[1e+21,1e-7,0.000001]"),
        ((1, "é"), '[1,"é"]'.encode()),
        (float(2**53), b"9007199254740992"),
    ],
)
def test_examples(value: Any, text: bytes) -> None:
    assert canonical_json(value) == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        [float("inf")],
        {"a": None, "b": float("-inf")},
        2**53,
        -(2**53),
        10**30,
        "\ud800",
        {"\udfff": 1},
        {1: 2},
        {"a": UUID(int=1)},
        {"a": object},
    ],
    ids=repr,
)
def test_what_has_no_canonical_form(value: Any) -> None:
    with pytest.raises(PacketRefused, match=r"^MALFORMED at \$: no canonical JSON form"):
        canonical_json(value)


def test_subclasses_hide_nothing() -> None:
    class Bag(dict[str, Any]):
        pass

    assert canonical_json({"a": Bag(x=1.0)}) == b'{"a":{"x":1}}'

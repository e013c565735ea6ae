"""Somebody sends content that an ordinary schema judges for seconds: meanwhile its gate does nothing else."""

from typing import Any

import pytest
from tests.contracts.schemas.test_schema_checks import listed, many

from apc_contracts import schemas
from apc_contracts.schemas import register_schema

MATCHED = {"patternProperties": {f"^[a-z]{{1,{count}}}": {"type": "integer"} for count in range(1, 51)}}
RENAMED = {"dependentRequired": {f"k{number}": ["x"] for number in range(500)}}


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(
    ("document", "content"),
    [
        (listed({"allOf": [{"minimum": 0}] * 200}), many(1)),
        (listed({"minimum": 0.5}), many(0.75)),
        (listed({"minimum": 1}), many(1e300)),
        (listed({"const": 0.5}), many(0.5)),
        (listed({"enum": [0.25, 0.5]}), many(0.5)),
        (listed({"items": {"allOf": [{"contains": True, "maxContains": 99}] * 10}}), {"l": [[1] * 15_000]}),
        (listed({"uniqueItems": True}), many([number + 0.5 for number in range(15)], 1_000)),
        ({"if": MATCHED, "then": {}}, {f"a{number}": 1 for number in range(16_000)}),
        ({"oneOf": [MATCHED, {"type": "null"}]}, {f"a{number}": 1 for number in range(16_000)}),
        (listed(RENAMED, maxItems=10_000), many({"a": 1}, 8_000)),
        ({"not": {"properties": {"l": {"pattern": "(a|b)*a(a|b){14}c"}}}}, {"l": "abaab" * 20_000}),
        (listed({"anyOf": [{"enum": list(range(5_000))}, {"type": "number"}]}), {"l": [1e-300]}),
        (listed({"anyOf": [{"enum": [1, 2, 3]}, {"type": "number"}]}), many(1e-300, 2_000)),
        (listed({"minimum": -0.5}), many(1e-300, 2_000)),
        (listed({"multipleOf": 0.5}), many(1e300, 2_000)),
    ],
)
def test_content_that_is_dear_to_judge_is_refused(
    monkeypatch: pytest.MonkeyPatch, document: dict[str, Any], content: dict[str, Any], is_guarded: bool
) -> None:
    """Each took more than twenty milliseconds."""
    schema = register_schema("finding/1", document)
    if not is_guarded:
        monkeypatch.setattr(schemas, "MAX_UNITS", 1 << 60)
    fault = schema.fault(content, "payload.content")
    if is_guarded:
        assert fault is not None and fault.path == "payload.content" and "send it in parts" in fault.message
    else:
        assert fault is None


@pytest.mark.parametrize("is_guarded", [False, True])
def test_the_place_of_a_fault_is_not_looked_for_in_deep_objects(
    monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """The error of the validator copies the value at fault: twelve milliseconds, and more with a large `enum`."""
    schema = register_schema("finding/1", {"enum": [{"a": f"{number}"} for number in range(3_000)]})
    content = many({"a": {"b": {"c": {}}}}, 4_900)
    if not is_guarded:
        monkeypatch.setattr(schemas, "MAX_UNITS", 1 << 60)
    fault = schema.fault(content, "payload.content")
    assert fault is not None and ("is not one of" in fault.message) is not is_guarded


@pytest.mark.parametrize("is_guarded", [False, True])
def test_a_fault_that_no_name_helps_to_say_stops_no_gate(monkeypatch: pytest.MonkeyPatch, is_guarded: bool) -> None:
    """A field named as a keyword was read as one."""
    schema = register_schema("finding/1", {"properties": {"additionalProperties": False}})
    if not is_guarded:
        monkeypatch.setattr(schemas, "_MAPS", frozenset())
    content = {"additionalProperties": 1}
    if is_guarded:
        assert schema.fault(content, "payload.content") is not None
    else:
        with pytest.raises((AttributeError, TypeError, StopIteration)):
            schema.fault(content, "payload.content")

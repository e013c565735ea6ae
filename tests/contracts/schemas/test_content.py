"""One line of a content: fields in the order of the schema, safe for a terminal, of a bounded length and cost."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field
from tests.support.traffic.packets import make_start

from apc_contracts.content import (
    content_line,
    fields_line,
    natural_text,
    ordered_fields,
    payload_line,
    title_of,
    typed_content,
)
from apc_contracts.payloads.by_type import MessagePayload, SignalPayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.schemas import RegisteredSchema, known_schema, register_schema
from apc_contracts.vocabulary import Signal

VECTORS = json.loads((Path(__file__).parents[3] / "web/frontend/tests/unit/content_vectors.json").read_text())


class Customer(BaseModel):
    name: str
    city: str = "Graz"


class Refund(BaseModel):
    reason: str
    order: str = Field(json_schema_extra={"x-title": True})
    euros: float
    customer: Customer | None = None
    items: list[str] = []
    is_late: bool = False


def schemas_of(*models: tuple[str, type[BaseModel]]) -> dict[str, RegisteredSchema]:
    return {
        name: register_schema(name, model.model_json_schema(by_alias=True, mode="serialization"))
        for name, model in models
    }


SCHEMAS = schemas_of(("refund/1", Refund))
REFUND = Refund(reason="came late", order="A-2", euros=80, customer=Customer(name="Ada"), items=["a", "b", "c", "d"])


def message(content: Mapping[str, Any], schema_id: str = "refund/1") -> dict[str, Any]:
    return {"schema": schema_id, "content": content}


def test_the_title_is_first_and_fields_follow_in_the_order_of_the_model() -> None:
    content = dict(sorted(REFUND.model_dump(mode="json").items()))  # as canonical JSON has them
    assert content_line("MESSAGE", message(content), SCHEMAS) == (
        "refund/1: order A-2, reason came late, euros 80, customer (name Ada, city Graz), "
        "items [a; b; c; 1 more], is_late no"
    )


def test_the_order_survives_the_canonical_json_of_the_registry() -> None:
    document = SCHEMAS["refund/1"].document
    again = known_schema("refund/1", {key: document[key] for key in sorted(document)})
    assert again.hash == known_schema("refund/1", Refund.model_json_schema(mode="serialization")).hash
    line = fields_line({"euros": 1, "is_late": True, "order": "A", "reason": "b"}, again.document)
    assert line == "order A, reason b, euros 1, is_late yes"


def test_of_an_unknown_schema_fields_stand_as_they_come() -> None:
    assert content_line("MESSAGE", message({"b": 1, "a": None, "c": {"d": [1.5]}}), {}) == "refund/1: b 1, c (d [1.5])"


def test_an_escape_sequence_an_override_and_a_line_break_do_nothing() -> None:
    hostile = "\x1b[31mred\x1b]0;title\x07\u202egnp.exe\r\n\u2066next\x00\u0085"
    line = content_line("MESSAGE", message({hostile: hostile}, "x/1"), {})
    assert line == "x/1: redgnp.exe next redgnp.exe next"


@pytest.mark.parametrize("width", [1, 8, 40, 160])
def test_a_line_is_never_wider_than_asked(width: int) -> None:
    contents: list[dict[str, Any]] = [
        {"text": "A" * 50_000},
        {"A" * 50_000: 1},
        {f"field_{number}": number for number in range(100_000)},
        {"list": list(range(100_000))},
        {"n": 10**400, "f": 1e300},
    ]
    for content in contents:
        line = content_line("MESSAGE", message(content), SCHEMAS, width=width)
        assert 0 < len(line) <= width


def test_a_deep_content_ends_at_a_few_levels() -> None:
    deep: Any = "bottom"
    for _ in range(30):
        deep = {"a": [deep]}
    assert "bottom" not in content_line("MESSAGE", message(deep), {}, width=1_000)


def test_a_recursive_schema_ends() -> None:
    tree = {"$ref": "#/$defs/Tree", "$defs": {"Tree": {"$ref": "#/$defs/Tree"}}}
    assert fields_line({"a": 1}, tree) == "a 1"


def test_each_packaged_type_says_its_own_text() -> None:
    said: dict[str, tuple[dict[str, Any], str]] = {
        "TASK_IR": ({"objects": [{"type": "Claim", "text": "x > 1"}, {"type": "Rule"}]}, "x > 1"),
        "IDEA": ({"intent": "boost"}, "boost"),
        "CLAIM": ({"text": "it is\nslow"}, "it is slow"),
        "ARTIFACT": ({"artifact_kind": "MODEL", "artifact_id": "m-1"}, "MODEL m-1"),
        "EVAL": ({"metric_set": {"outcome": 0.5}, "pass": True, "notes": ["ok"]}, "outcome 0.500, passed ok"),
        "TRANSFER": ({"protocol_id": "p", "from_swarm": "a"}, "offers p from a (unknown) to (unknown)"),
        "ARBITRATION": ({"winner_candidate_id": "none", "candidates": [1, 2]}, "chose nobody among 2 candidates"),
        "DECISION": ({"recommendation": "go", "next_actions": ["ship"]}, "go, then ship"),
        "RETRACTION": ({"reason": "wrong"}, "wrong"),
        "ACK": ({"ack_status": "ACCEPTED"}, "accepted"),
        "NACK": ({"ack_status": "REJECTED", "reason": "no"}, "rejected: no"),
        "ERROR": ({"error_code": "E", "message": "broke"}, "E: broke"),
        "HEARTBEAT": ({"signal": "SYNC"}, "SYNC"),
    }
    assert {name: content_line(name, payload, {}) for name, (payload, _) in said.items()} == {
        name: line for name, (_, line) in said.items()
    }


def test_questions_requests_answers_and_results_are_in_words() -> None:
    typed = message({"order": "A"})
    signal = {"signal": "ASK", "question": {"text": "Refund?"}}
    assert content_line("SIGNAL", signal, SCHEMAS) == "Refund?"
    assert content_line("SIGNAL", {"signal": "ASK", "request": typed}, SCHEMAS) == "refund/1: order A"
    denied = {"signal": "ANSWER", "answer": {"outcome": "denied", "note": "too much"}}
    assert content_line("SIGNAL", denied, SCHEMAS) == "denied: too much"
    answered = {"signal": "ANSWER", "answer": {"outcome": "answered", "result": typed}}
    assert content_line("SIGNAL", answered, SCHEMAS) == "answered: refund/1: order A"
    assert content_line("DECISION", {"recommendation": "done", "result": typed}, SCHEMAS) == "refund/1: order A"


def test_a_payload_of_the_wrong_shape_says_nothing_and_breaks_nothing() -> None:
    payloads: tuple[dict[str, Any], ...] = (
        {},
        {"content": 1, "schema": 2},
        {"answer": [], "question": 3},
        {"objects": 4},
        {"notes": {}},
    )
    for payload in payloads:
        for packet_type in ("MESSAGE", "SIGNAL", "TASK_IR", "EVAL", "DECISION", "UNKNOWN"):
            assert isinstance(content_line(packet_type, payload, SCHEMAS), str)


def test_a_long_natural_text_ends_with_an_ellipsis() -> None:
    line = content_line("CLAIM", {"text": "one of these learns it best: " * 20}, SCHEMAS, width=40)
    assert line == "one of these learns it best: one of the…"


def test_natural_text_keeps_its_lines_and_ends() -> None:
    assert natural_text("CLAIM", {"text": "a\nb"}) == "a\nb"
    assert len(natural_text("CLAIM", {"text": "a" * 100_000})) == 20_000


def test_a_title_is_the_marked_field_or_the_first_text() -> None:
    document = SCHEMAS["refund/1"].document
    assert title_of(REFUND.model_dump(mode="json"), document) == "A-2"
    assert title_of({"n": 1, "b": " ", "a": "first"}, {}) == "first"
    assert title_of({"n": 1}, {}) == ""


def test_typed_content_is_found_where_a_payload_carries_it() -> None:
    assert typed_content({"answer": {"result": message({"a": 1})}}) == ("refund/1", {"a": 1})
    assert typed_content({"text": "claim"}) is None


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_fields_stand_in_the_order_that_the_page_uses(vector: dict[str, Any]) -> None:
    found = [name for name, _, _ in ordered_fields(vector["content"], vector["schema"])]
    assert found == vector["order"]


def test_the_line_of_a_payload_that_was_read_names_who_is_in_the_session() -> None:
    start = SignalPayload(signal=Signal.START, session=TaskSessionSpec(contract="task", members=("a", "b")))
    assert payload_line("SIGNAL", start, {}) == "START: contract task, members a, b"
    assert payload_line("SIGNAL", make_start().payload, {}).startswith("START: red: red-1; blue: blue-1")
    said = payload_line("MESSAGE", MessagePayload(schema_id="refund/1", content={"order": "A"}), SCHEMAS)
    assert said == "refund/1: order A"

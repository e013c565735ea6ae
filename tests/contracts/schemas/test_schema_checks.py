"""What a registered schema may hold, and what is refused before anything is judged by it."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from tests.contracts.conftest import Documents

from apc_contracts.errors import PacketRefused, SchemaUnusable
from apc_contracts.identity.registry_change import parse_registry_change
from apc_contracts.schemas import (
    MAX_CHECKS_OF_A_PLACE,
    MAX_SCHEMA_BYTES,
    RegisteredSchema,
    known_schema,
    register_schema,
)
from apc_contracts.wire.canonical import canonical_json


class Comment(BaseModel):
    text: str
    answers: list["Comment"] = []


def refusal(document: Any) -> tuple[str, str]:
    with pytest.raises(SchemaUnusable) as refused:
        register_schema("finding/1", document)
    return refused.value.place, refused.value.message


def doubled(levels: int, keyword: str, wrap: bool) -> dict[str, Any]:
    """Definitions of which each names the next one twice: small, and exponential when it is followed."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        again: dict[str, Any] = {"$ref": f"#/$defs/d{level + 1}"}
        inner = {"properties": {"x": again}} if wrap else again
        definitions[f"d{level}"] = {keyword: [inner, inner]}
    return {"$ref": "#/$defs/d0", "$defs": definitions}


@pytest.mark.parametrize(
    ("document", "place", "message"),
    [
        ([], "$", "a schema is a JSON object"),
        (True, "$", "a schema is a JSON object"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema", "only JSON Schema 2020-12"),
        ({"$ref": "https://example.org/a.json"}, "$.$ref", "nothing is fetched"),
        ({"$ref": "file:///etc/passwd"}, "$.$ref", "nothing is fetched"),
        ({"properties": {"a": {"$ref": "other.json#/$defs/A"}}}, "$.properties.a.$ref", "nothing is fetched"),
        ({"$ref": "#/$defs/Absent"}, "$.$ref", "there is no definition 'Absent'"),
        ({"$ref": "#/properties/a", "properties": {"a": {}}}, "$.$ref", "refer to a definition"),
        ({"$id": "https://example.org/a.json"}, "$.$id", "is not used here"),
        ({"$defs": {"A": {"$dynamicAnchor": "x"}}}, "$.$defs.A.$dynamicAnchor", "is not used here"),
        ({"$ref": "#"}, "$", "leads back to itself"),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}}, "$.$defs.A", "leads back"),
        ({"not": {"anyOf": [{"$ref": "#"}]}}, "$", "leads back"),
        ({"pattern": "(?=a)b"}, "pattern", "without lookaround"),
        ({"pattern": r"(a)\1"}, "pattern", "without lookaround"),
        ({"pattern": "(a{1000}){1000}"}, "pattern", "large repetitions"),
        ({"patternProperties": {"(?<!a)b": {}}}, "patternProperties", "without lookaround"),
        ({"type": "integr"}, "type", "not valid under any"),
        ({"properties": {"a": {"minimum": "x"}}}, "properties.a.minimum", "number"),
        ({"properties": {f"p{n}": {} for n in range(2_001)}}, "$.properties.p1999", "more than 2000 subschemas"),
        ({"const": "x" * MAX_SCHEMA_BYTES}, "$", "larger than 65536 bytes"),
        ({"const": float("nan")}, "$", "no canonical JSON"),
    ],
)
def test_schemas_that_are_refused(document: Documents, place: str, message: str) -> None:
    found = refusal(document)
    assert message in found[1], found
    assert found[0].startswith(place) or place in found[0]


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
@pytest.mark.parametrize("wrap", [False, True])
def test_a_small_schema_that_would_cost_minutes(keyword: str, wrap: bool) -> None:
    """2^24 checks of one place: refused; the same with few levels is not."""
    assert "one place of the content" in refusal(doubled(24, keyword, wrap))[1]
    register_schema("finding/1", doubled(5, keyword, wrap))


def test_recursion_that_grows_is_refused_and_a_tree_is_not() -> None:
    fork = {"properties": {"next": {"$ref": "#"}}}
    assert f"more than {MAX_CHECKS_OF_A_PLACE}" in refusal({"anyOf": [fork, fork]})[1]
    tree = register_schema("comment/1", Comment.model_json_schema())
    deep: dict[str, Any] = {"text": "a", "answers": [{"text": "b", "answers": [{"text": 3}]}]}
    fault = tree.fault(deep, "payload.content")
    assert fault is not None
    assert fault.path == "payload.content.answers[0].answers[0].text"
    assert fault.schema_hash == tree.hash.hex()


def test_a_regex_that_explodes_elsewhere_is_linear_here() -> None:
    """A backtracking engine would not end."""
    schema = register_schema("text/1", {"properties": {"text": {"pattern": "^(a+)+$"}}})
    assert schema.fault({"text": "a" * 100_000 + "b"}, "payload.content") is not None
    assert schema.fault({"text": "a" * 100_000}, "payload.content") is None


def test_the_identity_leaves_annotations_out_and_nothing_else() -> None:
    def hashed(**changes: Any) -> bytes:
        document = {"title": "T", "properties": {"title": {"type": "string", "description": "d"}}} | changes
        return known_schema("finding/1", document).hash

    assert hashed() == hashed(title="other", description="x", examples=[1])
    assert hashed() == hashed(properties={"title": {"type": "string"}})
    assert hashed() != hashed(properties={})
    assert hashed() != hashed(properties={"title": {"type": "integer"}})
    assert hashed(const={"title": 1}) != hashed(const={"title": 2})
    assert hashed(enum=[{"title": 1}]) != hashed(enum=[{}])
    assert hashed(properties={"description": {"title": "t"}}) != hashed(properties={})


def test_messages_of_faults_show_no_values() -> None:
    schema = register_schema("secret/1", {"properties": {"token": {"type": "integer"}}})
    fault = schema.fault({"token": "hunter2" * 100}, "payload.content")
    assert fault is not None and "hunter2" not in fault.message and len(fault.message) < 250


def change(document: Any, schema_id: str = "finding/1") -> bytes:
    fields = {"action": "schema", "schema": schema_id, "document": document}
    return canonical_json({"change_id": "0190a5f2-0000-7222-8333-444455556666", **fields})


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        (change({"$ref": "https://example.org"}), "SCHEMA_INVALID", "document"),
        (change({"const": "x" * 1_000_000}), "TOO_LARGE", "$"),
        (change({}, "finding"), "SCHEMA_INVALID", "schema"),
        (change({}, "agent/../1"), "SCHEMA_INVALID", "schema"),
        (change([]), "SCHEMA_INVALID", "document"),
    ],
)
def test_changes_that_no_gate_takes(body: bytes, code: str, path: str) -> None:
    with pytest.raises(PacketRefused) as refused:
        parse_registry_change(body)
    assert refused.value.code == code
    assert refused.value.path.startswith(path)


def test_a_change_that_a_gate_takes() -> None:
    taken = parse_registry_change(change({"type": "object"}))
    assert taken.subject == "schema/finding/1"
    assert isinstance(register_schema("finding/1", {"type": "object"}), RegisteredSchema)


def listed(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"l": {"type": "array", "items": schema, **more}}}


CENTS = {"multipleOf": 0.01}
TINY = {"multipleOf": 1e-300}
OBJECTS = {"enum": [{"a": number} for number in range(80)]}
TREE = {"properties": {"k": {"items": {"$ref": "#/$defs/t"}, "maxItems": 2}, "v": TINY}}
MANY = {"$defs": {"d": OBJECTS}, "properties": {f"p{number}": {"$ref": "#/$defs/d"} for number in range(120)}}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (listed(TINY), "$.properties.l.items"),
        (listed(TINY, maxItems=501), "$.properties.l.items"),
        (listed(OBJECTS, maxItems=41), "$.properties.l.items"),
        (listed({"allOf": [{"anyOf": [OBJECTS]}]}), "$.properties.l.items.allOf[0].anyOf[0]"),
        ({"additionalProperties": TINY}, "$.additionalProperties"),
        ({"patternProperties": {"items": TINY}, "maxItems": 1}, "$.patternProperties.items"),
        ({"$ref": "#/$defs/t", "$defs": {"t": TREE}}, "$.$defs.t.properties.v"),
        ({"items": listed(TINY, maxItems=100), "maxItems": 100}, "$.items.properties.l.items"),
        ({"enum": [{"a": number} for number in range(4_500)]}, "$"),
        (MANY, "$.$defs.d"),
        (listed({"allOf": [{"minimum": 0.5}] * 200}), "$.properties.l.items.allOf[0]"),
    ],
)
def test_what_is_dear_is_not_judged_at_many_places(document: dict[str, Any], place: str) -> None:
    """A packet of 256 KiB took seconds: fractions of a thousand digits, and 4,500 objects that are compared in turn."""
    found, message = refusal(document)
    assert found == place and "a smaller maxItems" in message


@pytest.mark.parametrize(
    "document",
    [
        {"properties": {"price": CENTS, "kind": OBJECTS}},
        listed(CENTS),
        listed(TINY, maxItems=40),
        listed({"multipleOf": 2.0}),
        listed({"enum": [f"kind-{number}" for number in range(5_000)]}),
        listed({"properties": {"price": CENTS}}, maxItems=100),
    ],
)
def test_what_is_dear_at_few_places_is_taken(document: dict[str, Any]) -> None:
    register_schema("finding/1", document)


def test_the_first_of_many_faults_is_found_without_the_others() -> None:
    """Two million faults would take half a minute to name, and one is told."""
    schema = register_schema("finding/1", listed({"allOf": [{"type": "string"}] * 200}))
    fault = schema.fault({"l": [1] * 1_000}, "payload.content")
    assert fault is not None and fault.path == "payload.content.l[0]"


def test_all_unexpected_properties_of_an_object_are_named() -> None:
    """As in logs of release 0.1.0: the fault is recorded, and computed again by who verifies."""
    closed = {"properties": {"a": True}, "patternProperties": {"^z": True}, "additionalProperties": False}
    schema = register_schema("finding/1", {"$defs": {"n": closed}, **listed({"$ref": "#/$defs/n"})})
    fault = schema.fault({"l": [{"a": 1, "z": 2}, {"b": 1, "a": 2, "c": 3}]}, "payload.content")
    assert fault is not None and fault.path == "payload.content.l[1]"
    assert fault.message.startswith("Additional properties are not allowed ('b', 'c' were unexpected)")


def many(value: Any, times: int = 15_000) -> dict[str, Any]:
    return {"l": [value] * times}


class Found(BaseModel):
    kind: Literal["found"] = "found"
    service: str = Field(pattern="^[a-z0-9-]{1,64}$")
    confidence: float = Field(ge=0, le=1)
    tags: set[str] = set()
    note: str | None = None


class Missed(BaseModel):
    kind: Literal["missed"] = "missed"
    causes: list[str | int] = []


class Report(BaseModel):
    title: str
    entries: list[Annotated[Found | Missed, Field(discriminator="kind")]]


def test_large_ordinary_content_is_judged() -> None:
    schema = register_schema("report/1", Report.model_json_schema())
    entry = Found(service="checkout", confidence=0.75, tags={"a", "b"}).model_dump(mode="json")
    missed = Missed(causes=["a", 2]).model_dump(mode="json")
    content = {"title": "a", "entries": [entry, missed] * 150}
    assert schema.fault(content, "payload.content") is None
    numbers = register_schema("numbers/1", listed({"type": "number", "minimum": 0}))
    assert numbers.fault(many(0.25), "payload.content") is None


class Vector(BaseModel):
    model: Literal["small", "large"]
    score: float = Field(ge=0.5, le=0.95)
    price: float = Field(multiple_of=0.01)
    keys: set[str] = set()
    numbers: list[Annotated[float, Field(ge=-1, le=1)]]


@pytest.mark.parametrize("size", [1_536, 4_096])
def test_a_vector_of_floats_with_bounds_is_judged(size: int) -> None:
    """Bounds that are whole numbers cost little, and what stands once is no burden on each number."""
    schema = register_schema("vector/1", Vector.model_json_schema())
    numbers = [((number * 7_919) % 2_000_003) / 1_000_001.5 - 1 for number in range(size)]
    content = {"model": "small", "score": 0.75, "price": 12.34, "keys": ["a", "b"], "numbers": numbers}
    assert schema.fault(content, "payload.content") is None
    fault = schema.fault(content | {"numbers": [*numbers, 1.5]}, "payload.content")
    assert fault is not None and fault.path == f"payload.content.numbers[{size}]"


def test_where_a_large_content_does_not_fit_is_not_looked_for() -> None:
    """The error of the validator copies the value at fault: deep objects cost twelve milliseconds."""
    schema = register_schema("finding/1", {"type": "array"})
    content = many({"a": {"b": {"c": {}}}}, 4_900)
    fault = schema.fault(content, "payload.content")
    assert fault is not None and fault.message == "this value does not fit its schema (finding/1)"
    few = schema.fault(many({"a": {"b": {"c": {}}}}, 100), "payload.content")
    assert few is not None and 'not of type "array"' in few.message


@pytest.mark.parametrize(
    ("document", "content", "path", "message"),
    [
        ({"additionalProperties": False}, {"b": 1}, "", "('b' was unexpected)"),
        ({"additionalProperties": {"additionalProperties": False}}, {"a": {"b": 1}}, ".a", "('b' was unexpected)"),
        (
            {"properties": {"additionalProperties": False}},
            {"additionalProperties": 1},
            ".additionalProperties",
            "False",
        ),
        (
            {"properties": {"additionalProperties": False}},
            {"additionalProperties": {}},
            ".additionalProperties",
            "False",
        ),
        (
            {"patternProperties": {"additionalProperties": False}},
            {"additionalProperties": 1},
            ".additionalProperties",
            "F",
        ),
        ({"properties": {"not": False}}, {"not": 1}, ".not", "False schema"),
    ],
)
def test_a_closed_object_of_any_names_has_a_message(
    document: dict[str, Any], content: dict[str, Any], path: str, message: str
) -> None:
    """Each raised StopIteration in the gate, or could have."""
    fault = register_schema("finding/1", document).fault(content, "payload.content")
    assert fault is not None and fault.path == f"payload.content{path}" and message in fault.message


def test_texts_that_stand_once_may_stand_beside_many_floats() -> None:
    """Items that must be texts are compared only if they are: the engine compares floats of one list each with each."""
    schema = register_schema("finding/1", listed({"uniqueItems": True, "items": {"type": "string"}}))
    assert schema.fault({"l": [["a", "b"]] * 1_000, "n": [0.123456789] * 1_000}, "payload.content") is None
    for items, said in ((["a", "a"], "non-unique"), ([0.5, 0.5], "string")):
        fault = schema.fault({"l": [["a"], items]}, "payload.content")
        assert fault is not None and fault.path.startswith("payload.content.l[1]") and said in fault.message


@pytest.mark.parametrize(
    ("document", "path", "message"),
    [
        ({"anyOf": [{"items": {"type": "string"}}, {"type": "null"}]}, ".l", "under any of the schemas"),
        ({"oneOf": [{"type": "array"}, {"minItems": 1}]}, ".l", "under exactly one of the schemas"),
        ({"allOf": [True], "anyOf": [False, True], "not": {"type": "array"}}, ".l", "is not allowed for"),
        ({"allOf": [{"not": {"not": {"type": "null"}}}]}, ".l", "is not allowed for"),
        ({"anyOf": [True], "items": {"oneOf": [True, True]}}, ".l[0]", "under exactly one of the schemas"),
        ({"anyOf": [{"$ref": "#/$defs/n"}]}, ".l", "under any of the schemas"),
        ({"anyOf": [{"items": {"type": "null"}}], "unevaluatedItems": False}, "", "does not fit its schema"),
    ],
)
def test_alternatives_name_their_place(document: dict[str, Any], path: str, message: str) -> None:
    """The validator collects the faults of all alternatives, fifteen microseconds each: they are not asked for."""
    whole = {"properties": {"l": document}, "$defs": {"n": {"anyOf": [{"type": "null"}]}}}
    fault = register_schema("finding/1", whole).fault({"l": [1, 2, 3]}, "payload.content")
    assert fault is not None and fault.path == f"payload.content{path}" and message in fault.message


def test_a_closed_object_in_alternatives_names_all_unexpected() -> None:
    closed = {"anyOf": [True], "properties": {"a": True}, "additionalProperties": False}
    fault = register_schema("finding/1", listed(closed)).fault({"l": [{"b": 1, "c": 1}]}, "payload.content")
    assert fault is not None and "('b', 'c' were unexpected)" in fault.message


def test_a_schema_of_an_older_release_that_is_refused_now_bounds_its_content() -> None:
    old = known_schema("finding/1", listed({"allOf": [{"type": "integer"}] * 400}))
    assert old.fault(many(1, 20), "payload.content") is None
    assert old.fault(many(1), "payload.content") is not None

"""The exported JSON Schemas are those of the models, and judge documents as parse_packet does."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from apc_contracts import (
    PacketRefused,
    PacketType,
    encode_receipts,
    parse_packet,
    parse_receipts,
    parse_registry_change,
)
from apc_contracts.schema_export import SCHEMAS, export_schemas, packet_schema, schema_text

from .conftest import OTHER_ID, Change, Documents, put
from .identity.test_registry_change import ADDED
from .wire.test_receipts import RECEIPT
from .wire.test_schema_errors import CASES, STATE

FOLDER = Path(__file__).parents[2] / "contracts" / "schemas"
PACKETS = Draft202012Validator(packet_schema())

# The rules that `$comment` of the schema names as beyond JSON Schema, by words of their refusal.
BEYOND_JSON_SCHEMA = (
    "is its own root",
    "keeps its parent's root",
    "its own parent",
    "is no candidate",
    "listed twice: give",
    "listed twice: name",
    "use payload.protocol_id",
    "no such time",
    "9998-12-31",
)


def agree(document: dict[str, Any]) -> bool:
    """Return whether schema and parser judge alike, leaving out the rules that JSON Schema cannot express."""
    is_valid = PACKETS.is_valid(document)
    try:
        parse_packet(json.dumps(document).encode())
    except PacketRefused as refused:
        if any(words in refused.message for words in BEYOND_JSON_SCHEMA):
            return is_valid or " more)" in refused.message
        return not is_valid
    return is_valid


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_files_are_those_of_the_models(name: str) -> None:
    assert (FOLDER / name).read_text() == schema_text(SCHEMAS[name]()), (
        "run python -m apc_contracts.schema_export contracts/schemas"
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_are_valid(name: str) -> None:
    Draft202012Validator.check_schema(SCHEMAS[name]())


def test_export_writes_every_schema(tmp_path: Path) -> None:
    export_schemas(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == set(SCHEMAS) == {path.name for path in FOLDER.iterdir()}


def test_good_documents(any_document: dict[str, Any]) -> None:
    PACKETS.validate(any_document)
    assert agree(any_document)


@pytest.mark.parametrize(
    ("packet_type", "change"),
    [
        ("IDEA", put("trace", {"session_id": "s"})),
        ("IDEA", put("capability_tags", None)),
        ("IDEA", put("confidence", 0)),
        ("SIGNAL", put("payload", {"signal": "SYNC"})),
        ("SIGNAL", put("payload", {"signal": "SYNC", "session": STATE})),
        ("SIGNAL", put("payload", {"signal": "START", "session": None})),
        ("SIGNAL", put("payload", {"signal": "STOP", "session": None})),
        ("ACK", put("payload", {"acked_packet_id": OTHER_ID, "ack_status": "ACCEPTED"})),
        ("NACK", put("payload", {"acked_packet_id": OTHER_ID, "ack_status": "DEFERRED"})),
        ("TRANSFER", put("lineage", None)),
        ("TRANSFER", put("lineage.transfer_mode", "COMMONS_SEED")),
    ],
)
def test_edges(document: Documents, packet_type: str, change: Change) -> None:
    changed = document(packet_type)
    change(changed)
    assert agree(changed)


@pytest.mark.parametrize(
    ("packet_type", "change", "path"),
    [case[:3] for case in CASES],
    ids=[f"{case[0]}-{case[2]}" for case in CASES],
)
def test_bad_documents(document: Documents, packet_type: str, change: Change, path: str) -> None:
    changed = document(packet_type)
    change(changed)
    assert agree(changed), path


LEAVES = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 9, 10, 11, 0.5, 1.5, -0.5, "", "x", "a b", "START", "SYNC", "ACCEPTED",
     "INTRA_AGENT", "IDEA", "sha256:00", OTHER_ID, "2026-02-19T07:50:00+01:00", [], {}, ["x", "x"], {"x": 1}]
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in items for place in places(item, (*path, key)))]


def mutate(document: dict[str, Any], data: st.DataObject) -> None:
    *parents, last = data.draw(st.sampled_from([place for place in places(document) if place]))
    target: Any = document
    for key in parents:
        target = target[key]
    match data.draw(st.sampled_from(["replace", "remove", "add"])):
        case "replace":
            target[last] = deepcopy(data.draw(LEAVES))
        case "remove":
            del target[last]
        case "add" if isinstance(target, dict):
            name = data.draw(st.sampled_from(["x", "session", "reason", "lineage", "a b"]))
            target[name] = deepcopy(data.draw(LEAVES))
        case _:
            target.append(deepcopy(data.draw(st.sampled_from(target))))


@given(st.sampled_from(list(PacketType)), st.data())
def test_mutated_documents(document: Documents, packet_type: PacketType, data: st.DataObject) -> None:
    changed = document(packet_type)
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(changed, data)
    assert agree(changed), [error.message for error in PACKETS.iter_errors(changed)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"kind": "applause"},
        {"attempt": 0},
        {"usage": {"tokens": -1}},
        {"usage": None},
        {"x": 1},
        {"at": ""},
        {"set_aside": True},
        {"set_aside": 1},
    ],
)
def test_receipts(change: dict[str, Any]) -> None:
    document = [*json.loads(encode_receipts([RECEIPT]))]
    document[0] |= change
    is_valid = Draft202012Validator(SCHEMAS["receipts.schema.json"]()).is_valid(document)
    try:
        parse_receipts(json.dumps(document).encode())
        assert is_valid
    except PacketRefused:
        assert not is_valid


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"action": "revoke"},
        {"action": "promote"},
        {"agent_id": "_x"},
        {"agent_id": "orchestrator"},
        {"agent_id": "orchestrator-2"},
        {"public_keys": {"a b": ADDED.public_keys["k1"]}},
        {"public_keys": {"k1": "AAAA"}},
        {"rights": []},
        {"rights": ["rule"]},
    ],
)
def test_registry_changes(change: dict[str, Any]) -> None:
    document = json.loads(ADDED.model_dump_json()) | change
    is_valid = Draft202012Validator(SCHEMAS["registry-change.schema.json"]()).is_valid(document)
    try:
        parse_registry_change(json.dumps(document).encode())
        assert is_valid
    except PacketRefused:
        assert not is_valid

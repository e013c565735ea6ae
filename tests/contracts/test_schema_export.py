"""The exported JSON Schemas are those of the models, and judge documents as parse_packet does."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from jsonschema import Draft202012Validator

from apc_contracts import (
    PacketRefused,
    encode_receipts,
    parse_packet,
    parse_receipts,
    parse_registry_change,
)
from apc_contracts.schema_export import SCHEMAS, export_schemas, packet_schema, schema_text

from .conftest import OTHER_ID, Change, Documents, put
from .identity.test_registry_change import ADDED
from .random_packets import body_of, random_packet
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
    "listed twice: list it once",
    "min is above max",
    "is not measured",
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


PACKETS_IN_RUST = jsonschema_rs.Draft202012Validator(packet_schema())
BATCHES, BATCH = 5, 2_000


@pytest.mark.parametrize("batch", range(BATCHES))
def test_ten_thousand_random_packets(batch: int) -> None:
    """Schema and parser differ in none, and neither accepts or refuses them all."""
    accepted = beyond = 0
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        document = random_packet(random.Random(seed))
        is_valid = PACKETS_IN_RUST.is_valid(document)
        try:
            parse_packet(body_of(document))
        except PacketRefused as refused:
            if is_valid and any(words in refused.message for words in BEYOND_JSON_SCHEMA):
                beyond += 1
                continue
            assert not is_valid, (seed, refused)
        else:
            assert is_valid, (seed, [error.message for error in PACKETS.iter_errors(document)])
            accepted += 1
    assert BATCH // 5 < accepted < BATCH // 2 and beyond < BATCH // 100


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
        {"attempt": 2.0},
        {"attempt": 2.5},
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

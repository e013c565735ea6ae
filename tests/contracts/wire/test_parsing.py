"""parse_packet takes what the contract takes and gives it back unchanged."""

import json
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from apc_contracts import (
    PACKET_TYPES,
    PAYLOAD_TYPES,
    TYPE_OF_PAYLOAD,
    DocumentLimits,
    EvalPayload,
    IdeaPacket,
    IdeaPayload,
    Packet,
    PacketRefused,
    PacketType,
    SessionSpec,
    SignalPayload,
    parse_packet,
    payload_hash,
    read_packet,
    seal,
)

from ..conftest import Documents

SEED_EXAMPLE = (Path(__file__).parent / "seed_idea.json").read_bytes()


def as_bytes(document: Any) -> bytes:
    return json.dumps(document).encode()


def test_the_seeds_example_is_a_packet() -> None:
    packet = parse_packet(SEED_EXAMPLE)
    assert isinstance(packet, IdeaPacket)
    assert isinstance(packet, Packet)
    assert packet.payload_as(IdeaPayload).expected_impact.risk_change == -0.1
    assert packet.created_at == datetime(2026, 2, 19, 7, 50, tzinfo=UTC)
    assert packet.expires == packet.created_at + timedelta(minutes=1)
    assert packet.is_root
    assert seal(packet).body == rfc8785.dumps(json.loads(SEED_EXAMPLE))


def test_every_type_has_its_classes(any_document: dict[str, Any]) -> None:
    packet = parse_packet(as_bytes(any_document))
    kind = PacketType(any_document["packet_type"])
    assert type(packet) is PACKET_TYPES[kind]
    assert type(packet.payload) is PAYLOAD_TYPES[kind]
    assert TYPE_OF_PAYLOAD[type(packet.payload)] is kind
    assert packet.packet_type is kind


def test_round_trip(any_document: dict[str, Any]) -> None:
    packet = parse_packet(as_bytes(any_document))
    sealed = seal(packet)
    assert parse_packet(sealed.body) == packet
    assert sealed.body == rfc8785.dumps(json.loads(sealed.body))
    assert sealed.packet_hash == sha256(sealed.body).digest()
    received = read_packet(sealed.body)
    assert (received.packet, received.body, received.packet_hash) == (packet, sealed.body, sealed.packet_hash)
    assert received.payload_hash.hex() == payload_hash(packet.payload)
    assert sha256(rfc8785.dumps(json.loads(sealed.body)["payload"])).hexdigest() == payload_hash(packet.payload)


def test_hashes_are_of_the_received_bytes(document: Documents) -> None:
    body = json.dumps(document(), indent=2).encode()
    received = read_packet(body)
    assert received.packet_hash == sha256(body).digest() != seal(received.packet).packet_hash
    assert received.payload_hash.hex() == payload_hash(received.packet.payload)


def test_the_payload_hash_is_the_models_also_with_nulls_and_other_offsets(document: Documents) -> None:
    signal = document("SIGNAL")
    signal["payload"]["expected_response_by"] = "2026-02-19T08:51:00.500+01:00"
    signal["payload"]["session"]["budgets"] = {"packets": None}
    received = read_packet(as_bytes(signal))
    assert received.payload_hash.hex() == payload_hash(received.packet.payload)
    idea = document()
    idea["payload"]["complexity"] = None
    received = read_packet(as_bytes(idea))
    del idea["payload"]["complexity"]
    assert received.payload_hash == read_packet(as_bytes(idea)).payload_hash


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-02-19T07:50:00Z", datetime(2026, 2, 19, 7, 50, tzinfo=UTC)),
        ("2026-02-19T07:50:00.5+05:30", datetime(2026, 2, 19, 2, 20, 0, 500_000, tzinfo=UTC)),
        ("2026-02-19T00:10:00-23:59", datetime(2026, 2, 20, 0, 9, tzinfo=UTC)),
        ("2026-02-19T07:50:00.123456789Z", datetime(2026, 2, 19, 7, 50, 0, 123_456, tzinfo=UTC)),
    ],
)
def test_times_are_kept_and_written_in_utc(document: Documents, text: str, time: datetime) -> None:
    packet = parse_packet(as_bytes({**document(), "created_at": text}))
    assert packet.created_at == time
    assert packet.created_at.tzinfo is UTC
    assert json.loads(seal(packet).body)["created_at"] == time.isoformat().replace("+00:00", "Z")


def test_expires_at_wins_over_the_ttl(document: Documents) -> None:
    packet = parse_packet(as_bytes({**document(), "expires_at": "2026-02-20T00:00:00Z"}))
    assert packet.expires == datetime(2026, 2, 20, tzinfo=UTC)


def test_optional_fields_are_absent_when_sealed_but_nulls_in_maps_stay(document: Documents) -> None:
    written = json.loads(seal(parse_packet(as_bytes({**document(), "capability_tags": None}))).body)
    assert "capability_tags" not in written
    assert "lineage" not in written
    assert written["metadata"] == document()["metadata"]


def test_scores_take_json_integers(document: Documents) -> None:
    packet = parse_packet(as_bytes({**document("EVAL"), "confidence": 1}))
    assert packet.confidence == 1
    assert isinstance(packet.confidence, float)
    assert isinstance(packet.payload, EvalPayload)
    assert packet.payload.passed is True


def test_defaults_of_a_session_spec(document: Documents) -> None:
    start = document("SIGNAL")
    for field in ("members", "task_ids", "max_rounds", "budgets", "veto_window_ms"):
        del start["payload"]["session"][field]
    payload = parse_packet(as_bytes(start)).payload
    assert isinstance(payload, SignalPayload)
    assert isinstance(payload.session, SessionSpec)
    assert (payload.session.max_rounds, payload.session.veto_window_ms) == (2, 2000)
    assert payload.session.budgets.packets is None


def test_reserved_ids_are_readable(document: Documents) -> None:
    for agent_id in ("_all", "_substrate", "orchestrator", "a:b.c-d_e", "x" * 64):
        assert parse_packet(as_bytes({**document(), "recipients": [{"agent_id": agent_id}]}))


def test_packets_are_frozen(document: Documents) -> None:
    packet = parse_packet(as_bytes(document()))
    with pytest.raises(ValueError, match="frozen"):
        packet.confidence = 0.1  # type: ignore[misc]  # that mypy refuses it too is the point
    assert isinstance(packet.recipients, tuple)


def test_the_schema_is_judged_last() -> None:
    with pytest.raises(PacketRefused, match=r"^MALFORMED"):
        parse_packet(b'{"a":1,"a":2}')
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        parse_packet(SEED_EXAMPLE, DocumentLimits(size_bytes=100))
    with pytest.raises(PacketRefused, match=r"^TOO_DEEP"):
        parse_packet(SEED_EXAMPLE, DocumentLimits(levels=2))


def test_sealing_refuses_what_no_receiver_would_take(document: Documents) -> None:
    packet = parse_packet(as_bytes(document()))
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        seal(packet.model_copy(update={"metadata": {"x": "y" * 300_000}}))
    for value in (float("nan"), 1e17, 2**60, "\0", "\ud800"):
        with pytest.raises(PacketRefused, match=r"^MALFORMED"):
            seal(packet.model_copy(update={"metadata": {"x": value}}))


FREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)


@given(FREE, st.floats(0, 1), st.text(min_size=1, max_size=256))
def test_what_is_accepted_is_canonical_and_comes_back_equal(
    idea: bytes, free: Any, confidence: float, key: str
) -> None:
    document = json.loads(idea)
    document |= {"metadata": {"free": free}, "confidence": confidence, "symbolic_keys": [key]}
    body = json.dumps(document, ensure_ascii=True).encode()
    try:
        packet = parse_packet(body)
    except PacketRefused:
        return
    canonical = rfc8785.dumps(json.loads(body))
    assert parse_packet(canonical) == packet
    assert seal(packet).body == canonical


@given(st.data())
def test_no_damage_to_a_packet_escapes_as_another_error(idea: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(idea)))
    end = data.draw(st.integers(start, min(len(idea), start + 40)))
    body = idea[:start] + data.draw(st.binary(max_size=10)) + idea[end:]
    try:
        packet = parse_packet(body)
    except PacketRefused as refused:
        assert refused.code in ("MALFORMED", "SCHEMA_INVALID")
        return
    assert parse_packet(seal(packet).body) == packet


def test_payloads_are_built_from_plain_python() -> None:
    payload = IdeaPayload.model_validate(json.loads(SEED_EXAMPLE)["payload"])
    assert payload.assumptions[0] == "Label delay <= 7 days"

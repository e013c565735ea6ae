"""Receipts travel in batches and are read as strictly as packets."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from apc_contracts import PacketRefused, Receipt, ReceiptKind, Usage, encode_receipts, parse_receipts
from apc_contracts.wire import receipts
from apc_contracts.wire.receipts import EffectEntry, EffectReport, merge, steps_of
from apc_contracts.wire.strict_json import read_strict_json

RECEIPT = Receipt(
    packet_id=UUID("7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730"),
    session_id="sess-01",
    recipient="sentinel-1",
    kind=ReceiptKind.OUTCOME,
    attempt=1,
    usage=Usage(tokens=12, cost=0.5),
    at=datetime(2026, 2, 19, 7, 50, 1, tzinfo=UTC),
)


EFFECT = EffectReport(key="charge", claim=UUID(int=7), entry=EffectEntry.MADE, digest="0" * 64, reference="r-17")


@pytest.mark.parametrize("kind", ReceiptKind)
def test_round_trip(kind: ReceiptKind) -> None:
    sent = [
        replace(RECEIPT, kind=kind, effect=EFFECT if kind is ReceiptKind.EFFECT else None),
        replace(RECEIPT, attempt=2, usage=None, error="boom"),
    ]
    assert parse_receipts(encode_receipts(sent)) == sent


def test_the_form_on_the_wire() -> None:
    assert json.loads(encode_receipts([RECEIPT])) == [
        {
            "packet_id": "7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730",
            "session_id": "sess-01",
            "recipient": "sentinel-1",
            "kind": "outcome",
            "attempt": 1,
            "usage": {"tokens": 12, "cost": 0.5},
            "at": "2026-02-19T07:50:01Z",
        }
    ]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"kind": "applause"}, "[0].kind"),
        ({"attempt": 0}, "[0].attempt"),
        ({"recipient": "a b"}, "[0].recipient"),
        ({"usage": {"tokens": -1}}, "[0].usage.tokens"),
        ({"usage": {"joules": 1}}, "[0].usage.joules"),
        ({"at": "now"}, "[0].at"),
        ({"extra": 1}, "[0].extra"),
        ({"recipient": "a\n"}, "[0].recipient"),
        ({"packet_id": "7F0C2F5D-0F76-4A4C-93D0-F0B2E2891730"}, "[0].packet_id"),
        ({"packet_id": "7f0c2f5d0f764a4c93d0f0b2e2891730"}, "[0].packet_id"),
        ({"at": "0001-01-01T00:00:00Z"}, "[0].at"),
        ({"at": "2026-02-19T07:50:01"}, "[0].at"),
        ({"delivered_at": "9999-01-01T00:00:00Z"}, "[0].delivered_at"),
        ({"applied_at": 5}, "[0].applied_at"),
    ],
)
def test_refused_at_its_place(change: dict[str, Any], path: str) -> None:
    [receipt] = json.loads(encode_receipts([RECEIPT]))
    with pytest.raises(PacketRefused) as refused:
        parse_receipts(json.dumps([receipt | change]).encode())
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)


@pytest.mark.parametrize(
    ("written", "code"),
    [
        (b'[{"attempt":1,%s', "MALFORMED"),  # one more attempt: doubled
        (b'[{"error":"\\u0000",%s', "MALFORMED"),
        (b'[{"usage":{"tokens":9007199254740993},%s', "MALFORMED"),
        (b'[{"usage":{"cost":1e20},%s', "MALFORMED"),
    ],
)
def test_refused_as_strictly_as_packets(written: bytes, code: str) -> None:
    body = encode_receipts([replace(RECEIPT, usage=None)])
    parse_receipts(body)
    with pytest.raises(PacketRefused) as refused:
        parse_receipts(written.replace(b"%s", body[2:]))
    assert refused.value.code == code


def test_a_time_with_an_offset_is_held_in_utc() -> None:
    [receipt] = json.loads(encode_receipts([RECEIPT]))
    receipt |= {"at": "2026-02-19T09:50:01.5+02:00", "delivered_at": "2026-02-19T07:50:01-00:30"}
    [read] = parse_receipts(json.dumps([receipt]).encode())
    assert str(read.at) == "2026-02-19 07:50:01.500000+00:00" and str(read.delivered_at) == "2026-02-19 08:20:01+00:00"


MERGED = replace(
    RECEIPT,
    delivered_at=datetime(2026, 2, 19, 7, 49, tzinfo=UTC),
    applied_at=datetime(2026, 2, 19, 7, 49, 30, tzinfo=UTC),
    error='é\t"x',
)
PIECES = st.sampled_from(
    [b'"', b"{", b"}", b"[", b",", b":", b" ", b"0", b"1", b".5", b"e9", b"-", b"Z", b"T", b"null", b"true", b"\\",
     b"u0041", b'"attempt":1,', b'"x":1,', b'"error":"b",', b"+01:00", b"A", b"\n", b"\xff"]
)  # fmt: skip


@given(st.data())
def test_what_is_read_fast_is_what_the_strict_reader_reads(data: st.DataObject) -> None:
    body = bytearray(encode_receipts([MERGED]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        body[at : at + data.draw(st.integers(0, 3))] = data.draw(PIECES)
    changed = bytes(body)
    fast = receipts._as_written(changed)
    if fast is not None:
        read_strict_json(changed, receipts.RECEIPT_LIMITS)
        slow = receipts._validate(changed)
        assert [one.receipt() for one in slow] == fast


def test_a_merged_receipt_tells_the_same_steps() -> None:
    begun = Receipt(
        packet_id=RECEIPT.packet_id, session_id="sess-01", recipient="sentinel-1", kind=ReceiptKind.DELIVERY_ACK,
        attempt=1, at=datetime(2026, 2, 19, 7, 49, tzinfo=UTC),
    )  # fmt: skip
    applied = replace(begun, kind=ReceiptKind.CONSUMER_APPLY, at=datetime(2026, 2, 19, 7, 49, 30, tzinfo=UTC))
    both = merge(begun, applied)
    assert both is not None
    merged = merge(both, RECEIPT)
    assert merged == replace(MERGED, error=None) and steps_of(merged) == [begun, applied, RECEIPT]
    assert merge(applied, begun) is applied
    for kind in (ReceiptKind.REJECT, ReceiptKind.RETRY):
        failed = replace(begun, kind=kind, error="no")
        assert merge(begun, failed) == replace(failed, delivered_at=begun.at)
        assert merge(applied, failed) is None, "an applied packet is not rejected"
    assert merge(RECEIPT, replace(begun, kind=ReceiptKind.EXPIRED)) is None


@pytest.mark.parametrize("spent", [{"tokens": -1}, {"cost": float("nan")}, {"cost": float("inf")}, {"cost": -0.5}])
def test_usage_that_no_reader_would_take_is_refused_where_it_is_made(spent: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="usage"):
        Usage(**spent)


def test_a_batch_has_at_most_64_kib() -> None:
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        encode_receipts([RECEIPT] * 400)
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        parse_receipts(b" " * 65_537)
    with pytest.raises(PacketRefused, match=r"^SCHEMA_INVALID at \$: must be a JSON array"):
        parse_receipts(b"{}")


@pytest.mark.parametrize(
    "effect",
    [
        None,
        replace(EFFECT, key=""),
        replace(EFFECT, key="k" * 201),
        replace(EFFECT, digest="0" * 63),
        replace(EFFECT, digest="0" * 64 + "\n"),
        replace(EFFECT, reference="r" * 201),
        replace(EFFECT, note="n" * 201),
    ],
)
def test_an_effect_beyond_its_bounds_is_refused(effect: EffectReport | None) -> None:
    sent = encode_receipts([replace(RECEIPT, kind=ReceiptKind.EFFECT, effect=effect)])
    with pytest.raises(PacketRefused) as refused:
        parse_receipts(sent)
    assert refused.value.code == "SCHEMA_INVALID"


def test_no_other_kind_has_an_effect() -> None:
    with pytest.raises(PacketRefused, match="`effect`"):
        parse_receipts(encode_receipts([replace(RECEIPT, effect=EFFECT)]))

"""Receipts travel in batches and are read as strictly as packets."""

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from apc_contracts import PacketRefused, Receipt, ReceiptKind, Usage, encode_receipts, parse_receipts

RECEIPT = Receipt(
    packet_id=UUID("7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730"),
    session_id="sess-01",
    recipient="sentinel-1",
    kind=ReceiptKind.OUTCOME,
    attempt=1,
    usage=Usage(tokens=12, cost=0.5),
    at=datetime(2026, 2, 19, 7, 50, 1, tzinfo=UTC),
)


@pytest.mark.parametrize("kind", ReceiptKind)
def test_round_trip(kind: ReceiptKind) -> None:
    receipts = [
        RECEIPT.model_copy(update={"kind": kind}),
        RECEIPT.model_copy(update={"attempt": 2, "usage": None, "error": "boom"}),
    ]
    assert parse_receipts(encode_receipts(receipts)) == receipts


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
    ],
)
def test_refused_at_its_place(change: dict[str, Any], path: str) -> None:
    [receipt] = json.loads(encode_receipts([RECEIPT]))
    with pytest.raises(PacketRefused) as refused:
        parse_receipts(json.dumps([receipt | change]).encode())
    assert (refused.value.code, refused.value.path) == ("SCHEMA_INVALID", path)


def test_a_batch_has_at_most_64_kib() -> None:
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        encode_receipts([RECEIPT] * 400)
    with pytest.raises(PacketRefused, match=r"^TOO_LARGE"):
        parse_receipts(b" " * 65_537)
    with pytest.raises(PacketRefused, match=r"^SCHEMA_INVALID at \$: must be a JSON array"):
        parse_receipts(b"{}")

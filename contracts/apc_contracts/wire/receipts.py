"""Receipts travel in batches on apc.receipts.

Source: docs/specification/architecture.md section 2.
"""

from collections.abc import Sequence

import msgspec
from pydantic import TypeAdapter, ValidationError

from apc_contracts.contract_model import EARLIEST_TIME, LATEST_TIME
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import MAX_SAFE_INTEGER, DocumentLimits
from apc_contracts.wire.receipt import OPERATOR_KINDS, Receipt, ReceiptKind, Usage, merge, steps_of
from apc_contracts.wire.receipt_fields import ReceiptFields
from apc_contracts.wire.schema_errors import refusal_of
from apc_contracts.wire.strict_json import read_strict_json

__all__ = [
    "OPERATOR_KINDS",
    "RECEIPT_LIMITS",
    "Receipt",
    "ReceiptKind",
    "Usage",
    "encode_receipt",
    "encode_receipts",
    "merge",
    "parse_receipts",
    "steps_of",
]

RECEIPT_LIMITS = DocumentLimits(size_bytes=64 * 1024)
"""DocumentLimits of one receipts message; a sender with more splits them."""

_decoder = msgspec.json.Decoder(list[Receipt])
_encoder = msgspec.json.Encoder()
_adapter = TypeAdapter(list[ReceiptFields])


def parse_receipts(body: bytes) -> list[Receipt]:
    """Return the receipts in a message body.

    Raises:
        PacketRefused: as parse_packet; TOO_LARGE beyond 64 KiB.
    """
    receipts = _as_written(body)
    if receipts is not None:
        return receipts
    read_strict_json(body, RECEIPT_LIMITS)
    try:
        return [fields.receipt() for fields in _adapter.validate_json(body, strict=True)]
    except ValidationError as error:
        raise refusal_of(error) from error


def encode_receipts(receipts: Sequence[Receipt]) -> bytes:
    """Return the JSON array of receipts. Not canonical: nobody signs or hashes receipts.

    Raises:
        PacketRefused: TOO_LARGE beyond 64 KiB: send them in two messages.
    """
    body = _encoder.encode(receipts)
    if len(body) > RECEIPT_LIMITS.size_bytes:
        message = f"{len(body)} bytes of receipts, the limit is {RECEIPT_LIMITS.size_bytes}: send them in two messages"
        raise PacketRefused("TOO_LARGE", "$", message)
    return body


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the JSON of one receipt."""
    return _encoder.encode(receipt)


def _as_written(body: bytes) -> list[Receipt] | None:
    """Return the receipts of a body that is exactly what `encode_receipts` writes; None for any other.

    Such a body needs no other check: it has no unknown or doubled key, canonical ids, and times in UTC.
    """
    if len(body) > RECEIPT_LIMITS.size_bytes or b"\\u0000" in body:
        return None
    try:
        receipts = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: bytes that are not UTF-8
        return None
    if _encoder.encode(receipts) != body:
        return None
    return receipts if all(map(_is_within_bounds, receipts)) else None


def _is_within_bounds(receipt: Receipt) -> bool:
    if receipt.usage is not None and (receipt.usage.cost or 0) > MAX_SAFE_INTEGER:
        return False
    told = (receipt.at, receipt.delivered_at, receipt.applied_at)
    return all(one is None or EARLIEST_TIME <= one <= LATEST_TIME for one in told)

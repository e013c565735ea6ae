"""Receipts: the outcome of deliveries, reported in batches on apc.receipts.

Source: docs/specification/architecture.md section 2.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from apc_contracts.envelope.parts import MAX_TTL_MS
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import Limits
from apc_contracts.model import Count, Id, Model, Time, Uuid
from apc_contracts.wire.schema_errors import refusal_of
from apc_contracts.wire.strict_json import read_strict_json

RECEIPT_LIMITS = Limits(size_bytes=64 * 1024)
"""Limits of one receipts message; a sender with more splits them."""


class ReceiptKind(StrEnum):
    """What happened to the delivery."""

    DELIVERY_ACK = "delivery_ack"
    """Handed to a handler."""
    CONSUMER_APPLY = "consumer_apply"
    OUTCOME = "outcome"
    """The handler ended and its emissions are confirmed."""
    REJECT = "reject"
    RETRY = "retry"
    """The handler asks for another attempt, after `after_ms` or the contract's back-off."""
    RETRY_DUE = "retry_due"
    """From the gate to itself, through a delay queue: a deferred delivery is due."""
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    VERIFICATION_PASS = "verification_pass"
    VERIFICATION_FAIL = "verification_fail"
    REQUEUE = "requeue"
    DISCARD = "discard"


class Usage(Model):
    """What a handler spent; `cost` in the operator's unit."""

    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None


class Receipt(Model):
    """One event of one delivery. Each (packet_id, recipient, attempt, kind) counts once, usage included."""

    packet_id: Uuid
    session_id: Id
    recipient: Id
    kind: ReceiptKind
    attempt: Annotated[int, Field(ge=1)]
    usage: Usage | None = None
    at: Time
    error: str | None = None
    after_ms: Annotated[int, Field(ge=0, le=MAX_TTL_MS)] | None = None
    """For a `retry`: the delay of the next attempt; 0 and None = the contract's back-off."""


_adapter = TypeAdapter(list[Receipt])


def parse_receipts(body: bytes) -> list[Receipt]:
    """Return the receipts in a message body.

    Raises:
        PacketRefused: as parse_packet; TOO_LARGE beyond 64 KiB.
    """
    read_strict_json(body, RECEIPT_LIMITS)
    try:
        return _adapter.validate_json(body, strict=True)
    except ValidationError as error:
        raise refusal_of(error) from error


def encode_receipts(receipts: Sequence[Receipt]) -> bytes:
    """Return the JSON array of receipts. Not canonical: nobody signs or hashes receipts, and there are three a packet.

    Raises:
        PacketRefused: TOO_LARGE beyond 64 KiB: send them in two messages.
    """
    body = _adapter.dump_json(list(receipts), exclude_none=True)
    if len(body) > RECEIPT_LIMITS.size_bytes:
        message = f"{len(body)} bytes of receipts, the limit is {RECEIPT_LIMITS.size_bytes}: send them in two messages"
        raise PacketRefused("TOO_LARGE", "$", message)
    return body

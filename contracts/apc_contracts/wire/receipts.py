"""Receipts: one event of one delivery each, as its recipient or the orchestrator reports it; they travel in batches.

Source: docs/specification/architecture.md section 2.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import cache
from math import isfinite
from typing import Annotated, Self
from uuid import UUID

import msgspec
from msgspec.structs import replace
from pydantic import Field, TypeAdapter, ValidationError, model_validator

from apc_contracts.contract_model import (
    EARLIEST_TIME,
    ID_PATTERN,
    LATEST_TIME,
    SHA256_PATTERN,
    Count,
    Id,
    Model,
    Time,
    Uuid,
)
from apc_contracts.errors import PacketRefused
from apc_contracts.limits import MAX_SAFE_INTEGER, DocumentLimits
from apc_contracts.packet import MAX_TTL_MS
from apc_contracts.wire.parsing import refusal_of, validated
from apc_contracts.wire.strict_json import read_strict_json


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
    """From the orchestrator to itself, through a delay queue: a deferred delivery is due."""
    EXPIRED = "expired"
    DEAD_LETTERED = "dead_lettered"
    VERIFICATION_PASS = "verification_pass"
    VERIFICATION_FAIL = "verification_fail"
    REQUEUE = "requeue"
    DISCARD = "discard"
    EFFECT = "effect"
    """What became of an effect that the handler makes outside the bus: it moves nothing (docs/how-to/effects.md)."""


class EffectEntry(StrEnum):
    """What is reported of an effect."""

    CLAIMED = "claimed"
    """It is about to be made; the broker has confirmed this before it begins."""
    MADE = "made"
    UNKNOWN = "unknown"
    """It was begun, and nobody knows how that ended."""
    RELEASED = "released"
    """It was not made, and may be made now."""
    SETTLED = "settled"
    """Somebody has found out that it was made."""


SETTLING = frozenset({EffectEntry.RELEASED, EffectEntry.SETTLED})
"""What an operator may report too."""

OPERATOR_KINDS = frozenset({ReceiptKind.REQUEUE, ReceiptKind.DISCARD})
"""What an operator sends, not the recipient."""

SET_ASIDE = "set aside: it ended its consumer three times while alone"
"""The error of a `dead_lettered` with `set_aside`; logs from before that field have only this text."""

_Id = Annotated[str, msgspec.Meta(pattern=ID_PATTERN.replace("$", r"\Z"))]
"""Python's `$` would let a line end pass."""
_Time = Annotated[datetime, msgspec.Meta(tz=True)]


class Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a handler spent; `cost` in the operator's unit. Raises ValueError for what no JSON reader could take."""

    tokens: int | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if self.tokens is not None and not 0 <= self.tokens <= MAX_SAFE_INTEGER:
            raise ValueError(f"usage tokens is {self.tokens}: report 0 to 2^53 - 1")
        if self.cost is not None and not (isfinite(self.cost) and self.cost >= 0):
            raise ValueError(f"usage cost is {self.cost}: report a finite number of at least 0")

    def amounts(self) -> dict[str, int | float]:
        """Return what was reported, by name."""
        reported = {"tokens": self.tokens, "cost": self.cost}
        return {name: spent for name, spent in reported.items() if spent is not None}


MAX_EFFECT_KEY = 200
"""Characters of the name that a handler gives an effect."""
MAX_EFFECT_TEXT = 200
"""Characters of its reference and of its note."""
_EffectText = Annotated[str, msgspec.Meta(max_length=MAX_EFFECT_TEXT)]


class EffectReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry about an effect; each (packet_id, recipient, key, claim, entry) counts once."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_EFFECT_KEY)]
    """The handler's name for it."""
    claim: UUID
    """Tells two times apart at which the same effect was begun."""
    entry: EffectEntry
    digest: Annotated[str, msgspec.Meta(pattern=SHA256_PATTERN.replace("$", r"\Z"))] | None = None
    """SHA-256 of the result's RFC 8785 form, in hex; never the result itself."""
    reference: _EffectText | None = None
    """What the other side calls it, to be found there."""
    note: _EffectText | None = None
    """Why it is unknown, or was released."""


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One event of one delivery. Each (packet_id, recipient, attempt, kind) counts once, usage included.

    `ReceiptFields` has the same fields with their bounds.
    """

    packet_id: UUID
    session_id: _Id
    recipient: _Id
    kind: ReceiptKind
    attempt: Annotated[int, msgspec.Meta(ge=1, le=MAX_SAFE_INTEGER)]
    usage: Usage | None = None
    at: _Time
    error: str | None = None
    after_ms: Annotated[int, msgspec.Meta(ge=0, le=MAX_TTL_MS)] | None = None
    """For a `retry`: the delay of the next attempt; 0 and None = the contract's back-off."""
    delivered_at: _Time | None = None
    """When a handler got the packet, if no `delivery_ack` said so."""
    applied_at: _Time | None = None
    """When the handler was done, if no `consumer_apply` said so."""
    by: _Id | None = None
    """Of an operator's receipt: who acts, through a broker user that speaks for them; None = the user itself."""
    set_aside: bool = False
    """For a `dead_lettered`: its recipient reports it, because the packet ended its workers (`apc_bus.last_resort`)."""
    effect: EffectReport | None = None
    """Of an `effect`, and of no other kind."""

    def time_of(self, event: str) -> datetime:
        """Return when an event of the lifecycle happened that this receipt reports or implies."""
        if event == "delivery_ack":
            return self.delivered_at or self.at
        if event == "consumer_apply":
            return self.applied_at or self.at
        return self.at


def is_of_operator(receipt: Receipt) -> bool:
    """Return whether an operator sends this and not the recipient: a settled effect names who has settled it."""
    settles = receipt.by is not None and receipt.effect is not None and receipt.effect.entry in SETTLING
    return receipt.kind in OPERATOR_KINDS or settles


_STEPS = {ReceiptKind.DELIVERY_ACK: 1, ReceiptKind.CONSUMER_APPLY: 2, ReceiptKind.OUTCOME: 3}


def merge(earlier: Receipt, later: Receipt) -> Receipt | None:
    """Return one receipt that says what two of the same attempt say, with all times; None when none can.

    The later one may be a `reject` or a `retry` of a packet that was not applied.
    """
    step, next_step = _STEPS.get(earlier.kind), _STEPS.get(later.kind)
    if step is None:
        return None
    if next_step is None:
        implies = later.kind in (ReceiptKind.REJECT, ReceiptKind.RETRY) and step == 1
        return replace(later, delivered_at=earlier.at) if implies else None
    if next_step <= step:
        return earlier
    delivered_at, applied_at = earlier.delivered_at, earlier.applied_at
    if step == 1:
        delivered_at = earlier.at
    elif step == 2:
        applied_at = earlier.at
    return replace(later, delivered_at=delivered_at, applied_at=applied_at)


def steps_of(receipt: Receipt) -> list[Receipt]:
    """Return a receipt for each step whose time this one tells: the reverse of `merge`."""
    steps = []
    if receipt.delivered_at is not None:
        steps.append(_step(receipt, ReceiptKind.DELIVERY_ACK, receipt.delivered_at))
    if receipt.applied_at is not None:
        steps.append(_step(receipt, ReceiptKind.CONSUMER_APPLY, receipt.applied_at))
    return [*steps, replace(receipt, delivered_at=None, applied_at=None)]


def _step(receipt: Receipt, kind: ReceiptKind, at: datetime) -> Receipt:
    return Receipt(
        packet_id=receipt.packet_id,
        session_id=receipt.session_id,
        recipient=receipt.recipient,
        kind=kind,
        attempt=receipt.attempt,
        at=at,
    )


# A receipt as pydantic reads it: the schema that is exported, and the refusal of what does not fit it.
#
# `parse_receipts` reads what our own senders write, in a fifth of the time.


class UsageFields(Model):
    """What a handler spent; `cost` in the operator's unit."""

    tokens: Count | None = None
    cost: Annotated[float, Field(ge=0)] | None = None


class EffectFields(Model):
    """One entry about an effect; each (packet_id, recipient, key, claim, entry) counts once."""

    key: Annotated[str, Field(min_length=1, max_length=MAX_EFFECT_KEY)]
    claim: Uuid
    entry: EffectEntry
    digest: Annotated[str, Field(pattern=SHA256_PATTERN)] | None = None
    """SHA-256 of the result's RFC 8785 form, in hex."""
    reference: Annotated[str, Field(max_length=MAX_EFFECT_TEXT)] | None = None
    note: Annotated[str, Field(max_length=MAX_EFFECT_TEXT)] | None = None


class ReceiptFields(Model):
    """One event of one delivery. Each (packet_id, recipient, attempt, kind) counts once, usage included."""

    packet_id: Uuid
    session_id: Id
    recipient: Id
    kind: ReceiptKind
    attempt: Annotated[int, Field(ge=1)]
    usage: UsageFields | None = None
    at: Time
    error: str | None = None
    after_ms: Annotated[int, Field(ge=0, le=MAX_TTL_MS)] | None = None
    """For a `retry`: the delay of the next attempt; 0 and None = the contract's back-off."""
    delivered_at: Time | None = None
    """When a handler got the packet, if no `delivery_ack` said so."""
    applied_at: Time | None = None
    """When the handler was done, if no `consumer_apply` said so."""
    by: Id | None = None
    """Of an operator's receipt: who acts, through a broker user that speaks for them; None = the user itself."""
    set_aside: bool = False
    """For a `dead_lettered`: its recipient reports it, because the packet ended its workers (`apc_bus.last_resort`)."""
    effect: EffectFields | None = None
    """Of an `effect`, and of no other kind."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if (self.kind is ReceiptKind.EFFECT) != (self.effect is not None):
            raise ValueError("effect: a receipt of the kind `effect` has it, and no other does")
        return self

    def receipt(self) -> Receipt:
        """Return it as the session reads it, with tokens and cost as one Usage."""
        usage = None if self.usage is None else Usage(tokens=self.usage.tokens, cost=self.usage.cost)
        effect = None if self.effect is None else EffectReport(**dict(self.effect))
        return Receipt(**{**dict(self), "usage": usage, "effect": effect})


__all__ = [
    "MAX_EFFECT_KEY",
    "MAX_EFFECT_TEXT",
    "OPERATOR_KINDS",
    "RECEIPT_LIMITS",
    "SETTLING",
    "SET_ASIDE",
    "EffectEntry",
    "EffectReport",
    "Receipt",
    "ReceiptKind",
    "Usage",
    "encode_receipt",
    "encode_receipts",
    "is_of_operator",
    "merge",
    "parse_receipts",
    "steps_of",
]

RECEIPT_LIMITS = DocumentLimits(size_bytes=64 * 1024)
"""DocumentLimits of one receipts message; a sender with more splits them."""

_decoder = msgspec.json.Decoder(list[Receipt])
_encoder = msgspec.json.Encoder()


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
        return [fields.receipt() for fields in validated(body, _validate)]
    except ValidationError as error:
        raise refusal_of(error) from error


def _validate(body: bytes) -> list[ReceiptFields]:
    return _fields_adapter().validate_json(body, strict=True)


@cache
def _fields_adapter() -> TypeAdapter[list[ReceiptFields]]:
    """Return what reads receipts that msgspec refused: rare, so that an agent need not build it to be defined."""
    return TypeAdapter(list[ReceiptFields])


def encode_receipts(receipts: Sequence[Receipt]) -> bytes:
    """Return the JSON array of receipts. Not canonical: nobody signs or hashes receipts.

    ```python
    done = Receipt(
        packet_id=packet_id,
        session_id="s-1",
        recipient="cashier",
        kind=ReceiptKind.OUTCOME,
        attempt=1,
        at=datetime(2026, 11, 27, 6, tzinfo=UTC),
        usage=Usage(tokens=120, cost=0.002),
    )
    assert parse_receipts(encode_receipts([done])) == [done]
    ```

    Raises:
        PacketRefused: TOO_LARGE beyond 64 KiB: send them in two messages.
    """
    body = _encoder.encode(receipts)
    if len(body) > RECEIPT_LIMITS.size_bytes:
        message = f"{len(body)} bytes of receipts, the limit is {RECEIPT_LIMITS.size_bytes}: send them in two messages"
        raise PacketRefused("TOO_LARGE", "$", message)
    return body


def encode_receipt(receipt: Receipt) -> bytes:
    """Return the JSON of one receipt; a message of them is an array (`encode_receipts`)."""
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
    if (receipt.kind is ReceiptKind.EFFECT) != (receipt.effect is not None):
        return False
    if receipt.usage is not None and (receipt.usage.cost or 0) > MAX_SAFE_INTEGER:
        return False
    times = (receipt.at, receipt.delivered_at, receipt.applied_at)
    return all(time is None or EARLIEST_TIME <= time <= LATEST_TIME for time in times)

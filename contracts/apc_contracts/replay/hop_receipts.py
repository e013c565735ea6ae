"""Recover the receipts behind a hop from what the log keeps of them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

from apc_contracts.replay.entries import RecordedHop
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT
from apc_contracts.wire.receipts import OPERATOR_KINDS, EffectEntry, EffectReport, Receipt, ReceiptKind, Usage

_KIND_OF_EVENT = {
    "delivery_ack": ReceiptKind.DELIVERY_ACK,
    "consumer_apply": ReceiptKind.CONSUMER_APPLY,
    "consumer_reject": ReceiptKind.REJECT,
    "retry_scheduled": ReceiptKind.RETRY,
    "ttl_expired": ReceiptKind.EXPIRED,
    "expired_before_handler": ReceiptKind.EXPIRED,
    "dead_lettered": ReceiptKind.DEAD_LETTERED,
    "requeued": ReceiptKind.REQUEUE,
    "discarded": ReceiptKind.DISCARD,
}
_VERIFICATIONS = {
    "verification_pass": ReceiptKind.VERIFICATION_PASS,
    "verification_fail": ReceiptKind.VERIFICATION_FAIL,
}
_NEW_ATTEMPT = frozenset({"retry_scheduled", "requeued"})


def is_substrate_confirm(hop: RecordedHop) -> bool:
    """Return whether the stream's confirm caused this hop."""
    return hop.recipient == SUBSTRATE_RECIPIENT and hop.actor == ORCHESTRATOR and hop.events[0] == "delivery_ack"


def verification_of(hop: RecordedHop, session_id: str) -> tuple[Receipt, ...]:
    """Return the result of verifying an ARTIFACT's bytes, if this hop begins with it; else nothing."""
    kind = _VERIFICATIONS.get(hop.events[0])
    if kind is None:
        return ()
    said = hop.metadata or {}
    error = said.get("error", said.get("warning"))
    return (_receipt(hop, session_id, kind, ORCHESTRATOR, 1, hop.occurred_at[0], error=error),)


def receipts_of(hop: RecordedHop, session_id: str) -> tuple[Receipt, ...]:
    """Return the receipts behind a recipient's hop, in the order in which they counted.

    Raises:
        KeyError, ValueError: no receipts can cause such a hop.
    """
    return tuple(_reported(hop, session_id))


def _reported(hop: RecordedHop, session_id: str) -> Iterator[Receipt]:
    said = hop.metadata or {}
    if "effect" in said:
        yield _effect(hop, session_id, dict(said["effect"]))
        return
    usage = Usage(**said["usage"]) if "usage" in said else None
    if "late" in said:  # a handler that ended after its attempt was given up: it moves nothing
        kind = ReceiptKind(said["late"])
        yield _receipt(
            hop, session_id, kind, hop.recipient, hop.attempt, hop.occurred_at[0], usage=usage, error=said.get("error")
        )
        return
    ended = ReceiptKind(said["ended"]) if "ended" in said else None
    begins_again = not _NEW_ATTEMPT.isdisjoint(hop.events)
    # A hop that begins an attempt was caused by receipts of the attempt before.
    attempt = hop.attempt - 1 if begins_again else hop.attempt
    events = zip(hop.events, hop.occurred_at, strict=True) if hop.to_state else ()
    counted = [(_KIND_OF_EVENT[event], at) for event, at in events]
    if ended is not None and all(kind is not ended for kind, _ in counted):
        counted.append((ended, datetime.fromisoformat(said["ended_at"])))
    # Fields of a receipt beside its kind belong to the one that ended the attempt.
    teller = len(counted) - 1
    if not begins_again and "discarded" not in hop.events:
        teller = [kind for kind, _ in counted].index(ended) if ended else -1
    for place, (kind, at) in enumerate(counted):
        at = datetime.fromisoformat(said["ended_at"]) if kind is ended else at
        details: dict[str, Any] = {}
        if place == teller:
            asked = said.get("retry", {}).get("asked_ms")
            is_set_aside = said.get("set_aside", False)
            details = {"usage": usage, "error": said.get("error"), "after_ms": asked, "set_aside": is_set_aside}
        if kind in OPERATOR_KINDS and hop.actor != hop.recipient:
            details["by"] = hop.actor
        yield _receipt(hop, session_id, kind, hop.recipient, attempt, at, **details)


def _effect(hop: RecordedHop, session_id: str, said: dict[str, Any]) -> Receipt:
    attempt, by = int(said.pop("attempt")), hop.actor if hop.actor != hop.recipient else None
    told = EffectReport(**{**said, "claim": UUID(said["claim"]), "entry": EffectEntry(said["entry"])})
    kind, at = ReceiptKind.EFFECT, hop.occurred_at[0]
    return _receipt(hop, session_id, kind, hop.recipient, attempt, at, by=by, effect=told)


def _receipt(
    hop: RecordedHop,
    session_id: str,
    kind: ReceiptKind,
    recipient: str,
    attempt: int,
    at: datetime,
    *,
    usage: Usage | None = None,
    error: str | None = None,
    after_ms: int | None = None,
    by: str | None = None,
    set_aside: bool = False,
    effect: EffectReport | None = None,
) -> Receipt:
    return Receipt(
        packet_id=hop.packet_id,
        session_id=session_id,
        recipient=recipient,
        kind=kind,
        attempt=attempt,
        usage=usage,
        at=at,
        error=error,
        after_ms=after_ms,
        by=by,
        set_aside=set_aside,
        effect=effect,
    )

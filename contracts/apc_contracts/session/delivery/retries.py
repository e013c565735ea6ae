"""Retries: how often, and when the next attempt is due (docs/specification/contract.md section 8).

A pure function of contract, packet, recipient and attempt: a replay finds the same delay, and deliveries that failed
together are not retried together.
"""

from datetime import datetime, timedelta
from hashlib import sha256
from math import ceil
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import RetryBackoff
from apc_contracts.envelope.packet import Packet
from apc_contracts.wire.receipts import Receipt, ReceiptKind

MILLISECOND = timedelta(milliseconds=1)
_GROWTH_ENDS = 64
"""A back-off that has not reached its longest delay by this attempt never does; beyond it a power could overflow."""


def backoff_ms(backoff: RetryBackoff, packet_id: UUID, recipient: str, attempt: int) -> int:
    """Return the milliseconds to wait after an attempt whose handler named no delay: the back-off, less its jitter."""
    grown = backoff.first_ms * backoff.factor ** min(attempt - 1, _GROWTH_ENDS)
    longest = min(grown, backoff.longest_ms)
    return max(1, round(longest * (1 - backoff.jitter * _share(packet_id, recipient, attempt))))


def within_limit(receipt: Receipt, packet: Packet, attempt: int, contract: Contract) -> Receipt:
    """Return the receipt, turned from `retry` into dead_lettered when it is beyond the limit.

    The first attempt is no retry.
    """
    if receipt.kind is not ReceiptKind.RETRY:
        return receipt
    named = packet.routing.retry_limit
    limit = contract.session.delivery_retry_limit if named is None else named
    if attempt <= limit:
        return receipt
    error = f"retry_limit {limit} reached: {receipt.error or 'no reason given'}"
    return replace(receipt, kind=ReceiptKind.DEAD_LETTERED, error=error)


def plan(receipt: Receipt, packet: Packet, now: datetime, contract: Contract) -> dict[str, Any] | None:
    """Return what the log keeps of a `retry`: {"asked_ms"?, "delay_ms", "due_at"}; never later than the packet's end.

    At the packet's end it is not handled again: its delivery then ends as expired. None: it is due at once.
    """
    delay = _delay_ms(contract.session.retry_backoff, packet.packet_id, receipt)
    if delay is None:
        return None
    delay = min(delay, max(0, ceil((packet.expires - now) / MILLISECOND)))
    asked = {} if receipt.after_ms is None else {"asked_ms": receipt.after_ms}
    return asked | {"delay_ms": delay, "due_at": (now + delay * MILLISECOND).isoformat()}


def _delay_ms(backoff: RetryBackoff | None, packet_id: UUID, receipt: Receipt) -> int | None:
    if receipt.after_ms:
        return receipt.after_ms
    return None if backoff is None else backoff_ms(backoff, packet_id, receipt.recipient, receipt.attempt)


def due_at(planned: dict[str, Any] | None) -> datetime | None:
    """Return when the planned attempt of a retry may begin."""
    return None if planned is None else datetime.fromisoformat(planned["due_at"])


def planned_at(planned: dict[str, Any]) -> datetime:
    """Return when a retry was planned: the timestamp of its log batch."""
    due, delay_ms = datetime.fromisoformat(planned["due_at"]), int(planned["delay_ms"])
    return due - delay_ms * MILLISECOND


def _share(packet_id: UUID, recipient: str, attempt: int) -> float:
    """Return a fraction in 0..1, evenly distributed over deliveries and attempts."""
    digest = sha256(f"{packet_id}/{recipient}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48

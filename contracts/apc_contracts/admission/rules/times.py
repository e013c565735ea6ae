"""Rules for EXPIRED and CLOCK_SKEW. `now` is the gate's clock; offline, the packet's created_at."""

from datetime import timedelta

from apc_contracts.admission.case import Case
from apc_contracts.judging.verdict import Refusal


def not_expired(case: Case) -> Refusal | None:
    """Refuse a packet whose time has passed."""
    packet = case.packet
    if case.facts.now < packet.expires:
        return None
    path = "routing.ttl_ms" if packet.expires_at is None else "expires_at"
    message = f"expired at {packet.expires.isoformat()}: send a new packet that lives longer"
    return Refusal("EXPIRED", "not_expired", path, message)


def not_from_the_future(case: Case) -> Refusal | None:
    """Refuse a packet whose created_at is too far ahead of the gate's clock."""
    created_at, now = case.packet.created_at, case.facts.now
    if created_at <= now:
        return None
    tolerance = timedelta(milliseconds=case.contract.limits.clock_skew_ms)
    if created_at - now <= tolerance:
        return None
    message = f"created {(created_at - now).total_seconds():.0f} s ahead of the gate: set the sender's clock"
    return Refusal("CLOCK_SKEW", "not_from_the_future", "created_at", message)

"""Deliver a packet to one recipient again: asked for by the recipient, an operator, or a deadline of the gate."""

from datetime import datetime

from msgspec.structs import replace

from apc_contracts.contract.contract import Contract
from apc_contracts.session.delivery.lifecycle import LIFECYCLE, Record, end_delivery
from apc_contracts.session.session import OpenPacket, Progress, Session
from apc_contracts.session.session_effects import Effects, Hop, Route
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.receipts import Receipt, ReceiptKind

_AGAIN = {
    "ROUTED": ["dead_lettered", "requeued"],
    "DELIVERED": ["retry_scheduled"],
    "DEAD_LETTERED": ["requeued"],
}
"""How the gate itself begins a new attempt. ROUTED has no edge to itself: the delivery is given up, then requeued."""


def route_again(
    session: Session,
    opened: OpenPacket,
    recipient: str,
    why: str,
    now: datetime,
    effects: Effects,
    contract: Contract,
) -> bool:
    """Begin a new attempt for one recipient; return False when its machine cannot go back to ROUTED."""
    progress = opened.recipients[recipient]
    before, events = progress.state, _AGAIN.get(progress.state)
    if events is None:
        return False
    for event in events:
        progress.state = contract.machine(LIFECYCLE).step(progress.state, event)
    packet_id, times = opened.packet.packet_id, [now] * len(events)
    metadata: Record = {"error": why}
    if progress.is_open:
        progress.given_up.add(progress.attempt)
        metadata["given_up"] = progress.attempt
    hop = Hop(packet_id, recipient, progress.attempt + 1, before, progress.state, events, times, ORCHESTRATOR, metadata)
    effects.hops.append(hop)
    reroute(session, opened, recipient, progress, effects)
    return True


def reroute(
    session: Session,
    opened: OpenPacket,
    recipient: str,
    progress: Progress,
    effects: Effects,
    not_before: datetime | None = None,
) -> None:
    """Begin a new attempt: the delivery before it has ended, so counters count one more."""
    end_delivery(session, opened, recipient, effects)
    progress.attempt += 1
    progress.is_open = True
    progress.not_before = not_before
    session.outstanding[recipient] = session.outstanding.get(recipient, 0) + 1
    effects.routes.append(Route(opened.received, (recipient,), progress.attempt, not_before))


def release_retry(
    opened: OpenPacket, progress: Progress, receipt: Receipt, now: datetime, effects: Effects
) -> Receipt | None:
    """Deliver a deferred retry that is due, or expire it; return None when nothing is to be logged.

    It may come twice, because a new lease holder re-arms every pending retry; the worker drops the second delivery.
    """
    if progress.not_before is None or not progress.is_open:
        return None
    if opened.packet.expires <= now:
        return replace(receipt, kind=ReceiptKind.EXPIRED, at=now)
    effects.due.append(Route(opened.received, (receipt.recipient,), progress.attempt, progress.not_before))
    return None

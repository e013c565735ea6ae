"""Rules for OVERLOADED. The orchestrator's own packets are exempt.

An inbox holds twice the bound. A sender may have as many open deliveries there as places are free: a single sender gets
up to the bound, two senders two thirds of it each, and a new sender still finds room (dynamic thresholds, Choudhury and
Hahne 1998). The agents of a host share one inbox, so that each of them has a smaller bound there.
"""

from apc_contracts.admission.case import Case
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalFields
from apc_contracts.vocabulary import ALL_RECIPIENTS, CONTROL_TYPES, PacketType, Signal

_RELIEF = frozenset({Signal.STOP, Signal.CANCEL, Signal.PAUSE, Signal.VETO})
"""Signals that end or ease an overload are not refused because of it; the inbox holds twice the bound."""
HOSTED_BOUND = 125
"""Of an agent of a host: 250 in all. A host takes 5,000 packets at a time, so that nineteen agents which do not end
theirs leave room for the others."""
_KEPT_FREE = 4
"""One part in this many of a bound is kept free for the orchestrator, whose packets are not refused."""


def inbox_has_room(case: Case) -> Refusal | None:
    """Refuse a packet when a recipient has more open deliveries of this sender than the sender's share."""
    bound, outstanding = case.facts.outstanding_bound, case.facts.outstanding
    if bound is None or not outstanding:
        return None
    for index, recipient in enumerate(case.packet.recipients):
        full = first_full(case, recipient.agent_id)
        if full is not None and not _is_relief(case):
            message = f"{full} has {_told(case, bound)}: send a new packet later"
            retry_after_ms = case.contract.limits.retry_after_ms
            return Refusal("OVERLOADED", "inbox_has_room", f"recipients[{index}]", message, retry_after_ms)
    return None


def _told(case: Case, bound: int) -> str:
    if case.facts.own_outstanding is None:
        return f"{bound} open deliveries"
    return f"as many open deliveries of {case.sender_id} as it may have"


def acks_have_room(case: Case) -> Refusal | None:
    """Refuse a packet with requires_ack when the session waits for too many ACKs already.

    The session keeps each one until it arrives or times out.
    """
    session, bound = case.session, case.contract.limits.pending_acks
    if not case.packet.routing.requires_ack or session is None or session.pending_acks < bound:
        return None
    message = f"session {session.session_id} waits for {bound} ACKs: send a new packet later, or without requires_ack"
    retry_after_ms = case.contract.limits.retry_after_ms
    return Refusal("OVERLOADED", "acks_have_room", "routing.requires_ack", message, retry_after_ms)


def bytes_have_room(case: Case) -> Refusal | None:
    """Refuse a packet when the bodies of unfinished packets leave its sender no room in the session.

    A sender may have as many bytes there as are free.
    """
    session, bound = case.session, case.contract.limits.open_bytes
    if session is None:
        return None
    own, total = session.open_bytes_of(case.sender_id), session.open_bytes
    if total + own < bound or _is_relief(case):
        return None
    message = f"session {session.session_id} has {total} bytes of packets without an end, {own} of {case.sender_id}: "
    message += "send a new packet later"
    retry_after_ms = case.contract.limits.retry_after_ms
    return Refusal("OVERLOADED", "bytes_have_room", "trace.session_id", message, retry_after_ms)


def session_has_room(case: Case) -> Refusal | None:
    """Refuse a packet when the session remembers too many packets.

    Packets that answer or control have the same room again.
    """
    session, bound = case.session, case.contract.limits.session_items
    if session is None or session.items < bound or _is_relief(case):
        return None
    if case.packet.packet_type in CONTROL_TYPES and session.items < 2 * bound:
        return None
    message = f"session {session.session_id} has taken {bound} packets, recipients and references: open a new one"
    return Refusal("BUDGET_EXHAUSTED", "session_has_room", "trace.session_id", message)


def first_full(case: Case, agent_id: str) -> str | None:
    """Return the agent behind a recipient that has reached the bound; for `_all` the smallest agent_id."""
    bound = case.facts.outstanding_bound
    if bound is None:
        return None
    if agent_id == ALL_RECIPIENTS:
        return _first_full_member(case, bound)
    return agent_id if _is_full(case, agent_id, bound) else None


def bound_of(recipient: Registration | None, bound: int) -> int:
    """Return the bound on the open deliveries of this recipient, where the contract's is `bound`."""
    return bound if recipient is None or recipient.host is None else min(bound, HOSTED_BOUND)


def _is_full(case: Case, agent_id: str, bound: int) -> bool:
    bound = bound_of((case.facts.registry or {}).get(agent_id), bound)
    total, own = case.facts.outstanding.get(agent_id, 0), case.facts.own_outstanding
    share = total if own is None else own.get(agent_id, 0)
    return total + max(share, bound // _KEPT_FREE) >= 2 * bound


def _first_full_member(case: Case, bound: int) -> str | None:
    """Return the smallest agent_id that is full among the members that handle the type of a BROADCAST."""
    registry, session = case.facts.registry or {}, case.session
    full = sorted(agent_id for agent_id in case.facts.outstanding if _is_full(case, agent_id, bound))
    for agent_id in full:
        registration = registry.get(agent_id)
        if registration is None or session is None or not session.is_member(agent_id):
            continue
        if agent_id != case.sender_id and _is_meant(case.packet, registration):
            return agent_id
    return None


def _is_meant(packet: Packet, registration: Registration) -> bool:
    first, packet_type = packet.recipients[0], packet.packet_type
    return (
        not registration.is_revoked
        and (packet_type in CONTROL_TYPES or packet_type in registration.handles)
        and first.swarm_id in (None, registration.swarm_id)
        and first.role in (None, registration.role)
    )


def _is_relief(case: Case) -> bool:
    return case.packet.packet_type is PacketType.SIGNAL and case.packet.payload_as(SignalFields).signal in _RELIEF

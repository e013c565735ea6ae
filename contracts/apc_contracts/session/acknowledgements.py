"""ACKs that a session waits for: expected at routing, settled by an ACK or NACK, enforced by timers.

One deadline per packet and attempt, `ack:<packet_id>:<attempt>`, covers all recipients that are missing. When it
passes, the packet is routed to them again, up to its retry_limit; then its sender gets a NACK DEFERRED that names them.
Source: docs/specification/contract.md sections 1 and 10.
"""

from typing import Any
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import AckPayload, NackPayload
from apc_contracts.session import emissions, receipts
from apc_contracts.session.document import PendingAck
from apc_contracts.session.movement import Advance, start_timer
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.vocabulary import ORCHESTRATOR, SUBSTRATE_RECIPIENT, AckStatus, Channel, PacketType

ANSWERS = frozenset({PacketType.ACK, PacketType.NACK})
TIMER = "ack"
_NOT_WAITED_FOR = frozenset({ORCHESTRATOR, SUBSTRATE_RECIPIENT})


def wants_ack(packet: Packet, contract: Contract) -> bool:
    """Return whether the session waits for ACKs of this packet.

    Never for packets that stay inside an agent or are never answered.
    """
    return (
        packet.routing.requires_ack
        and packet.channel is Channel.INTER_AGENT
        and packet.packet_type not in contract.refusals.never_answered
    )


def expect(moment: Advance, opened: OpenPacket) -> None:
    """Wait for the ACK of each recipient of a routed packet.

    The orchestrator, if it is a recipient, answers at once.
    """
    packet, routing = opened.packet, opened.packet.routing
    if not wants_ack(packet, moment.contract):
        return
    if ORCHESTRATOR in opened.recipients:
        payload = AckPayload(acked_packet_id=packet.packet_id, ack_status=AckStatus.ACCEPTED)
        emissions.emit(moment, PacketType.ACK, payload, parent=packet.packet_id, recipient=packet.sender.agent_id)
    missing = [recipient for recipient in opened.recipients if recipient not in _NOT_WAITED_FOR]
    if not missing:
        return
    rules = moment.contract.session
    pending = PendingAck(
        packet.sender.agent_id,
        missing,
        rules.ack_timeout_ms if routing.ack_timeout_ms is None else routing.ack_timeout_ms,
        rules.ack_retry_limit if routing.retry_limit is None else routing.retry_limit,
    )
    moment.session.document.pending_acks[packet.packet_id] = pending
    _start_timer(moment, packet.packet_id, pending)


def settle(moment: Advance, packet: Packet) -> dict[str, Any] | None:
    """Settle an ACK or NACK: its sender is no longer waited for.

    Returns what the log keeps with the answer: {"acknowledges": {"packet_id", "as"}}, `as` being `settled`, `late` (the
    sender was told that it is missing), `not_awaited` or `unknown` (no such packet went to this agent).
    """
    document, agent = moment.session.document, packet.sender.agent_id
    answer = packet.payload
    assert isinstance(answer, AckPayload | NackPayload), "no other type answers"
    packet_id = answer.acked_packet_id
    pending = document.pending_acks.get(packet_id)
    overdue = document.overdue_acks.get(packet_id, [])
    identity = moment.session.identity(packet_id)
    if pending is not None and agent in pending.missing:
        pending.missing.remove(agent)
        if not pending.missing:
            forget(moment.session, packet_id)
        how = "settled"
    elif agent in overdue:
        overdue.remove(agent)
        if not overdue:
            del document.overdue_acks[packet_id]
        how = "late"
    elif identity is not None and identity.refusal is None and agent in identity.recipients:
        how = "not_awaited"
    elif agent == ORCHESTRATOR:
        return None  # it does not answer: it tells a sender which recipients are missing
    else:
        how = "unknown"
    return {"acknowledges": {"packet_id": str(packet_id), "as": how}}


def expire(moment: Advance, packet_id: UUID) -> None:
    """Route again after the deadline of an attempt where that is possible, else tell the sender."""
    session = moment.session
    pending = session.document.pending_acks.get(packet_id)
    if pending is None:
        return
    if pending.attempt <= pending.retry_limit and _route_again(moment, packet_id, pending):
        pending.attempt += 1
        _start_timer(moment, packet_id, pending)
        return
    forget(session, packet_id)
    _tell_sender(moment, packet_id, pending)
    overdue = session.document.overdue_acks
    overdue[packet_id] = pending.missing
    while len(overdue) > moment.contract.limits.pending_acks:
        del overdue[next(iter(overdue))]


def forget(session: Session, packet_id: UUID) -> None:
    """Stop waiting for ACKs of this packet: all have arrived, or it was retracted."""
    pending = session.document.pending_acks.pop(packet_id, None)
    if pending is not None:
        session.document.deadlines.pop(_kind(packet_id, pending), None)


def forget_all(session: Session) -> None:
    """Stop waiting for any ACK: the session has ended, and its timers with it."""
    session.document.pending_acks.clear()
    session.document.overdue_acks.clear()


def packet_of_timer(kind: str) -> UUID | None:
    """Return the packet whose ACKs a kind of timer is about; None for the other kinds."""
    name, _, rest = kind.partition(":")
    return UUID(rest.partition(":")[0]) if name == TIMER else None


def _route_again(moment: Advance, packet_id: UUID, pending: PendingAck) -> bool:
    """Route again to every recipient whose machine can go back to ROUTED.

    Return False when there is none, or the packet has expired.
    """
    session = moment.session
    opened = session.open.get(packet_id)
    if opened is None or opened.packet.expires <= moment.now:
        return False
    again = [
        receipts.route_again(session, opened, recipient, "no ACK in time", moment.now, moment.effects, moment.contract)
        for recipient in pending.missing
    ]
    return any(again)


def _tell_sender(moment: Advance, packet_id: UUID, pending: PendingAck) -> None:
    """Send NACK DEFERRED: which recipients are missing, and the state of the packet for each."""
    opened = moment.session.open.get(packet_id)
    machines = {} if opened is None else opened.recipients
    missing = {name: machines[name].state if name in machines else "ended" for name in pending.missing}
    named = ", ".join(f"{name} ({state})" for name, state in missing.items())
    times = "once" if pending.attempt == 1 else f"{pending.attempt} times"
    reason = f"no ACK from {named}: routed {times}, {pending.timeout_ms} ms each"
    payload = NackPayload(acked_packet_id=packet_id, ack_status=AckStatus.DEFERRED, reason=reason)
    metadata = {"acknowledgement": {"missing": missing, "attempts": pending.attempt}}
    emissions.emit(moment, PacketType.NACK, payload, parent=packet_id, recipient=pending.sender, metadata=metadata)


def _start_timer(moment: Advance, packet_id: UUID, pending: PendingAck) -> None:
    start_timer(moment, _kind(packet_id, pending), pending.timeout_ms)


def _kind(packet_id: UUID, pending: PendingAck) -> str:
    return f"{TIMER}:{packet_id}:{pending.attempt}"

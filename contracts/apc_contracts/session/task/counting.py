"""How an accepted packet counts in a session of the coordinator `task`, whatever round its parent is of."""

from collections.abc import Callable
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import DecisionPayload, ErrorPayload, RetractionPayload, SignalFields
from apc_contracts.session.document import Work
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import OpenPacket
from apc_contracts.session.session_effects import Hop
from apc_contracts.vocabulary import HANDLER_ERROR, UNSETTLED, WAITED, CommitmentLevel, PacketType, Signal

_FAILED = ("handler_error", "delivery_limit")
_FAILED_OFTEN = "retry_limit "
"""How the reason begins when the retries that a handler asked for have run out."""
_LONGEST_REASON = 200


def count(moment: Advance, packet: Packet, work: Work) -> None:
    """Note what a packet does to the work: it begins, ends, is approved or objected to."""
    counter = _COUNTERS.get(packet.packet_type)
    if counter is not None:
        counter(moment, packet, work)


def note_failure(moment: Advance, opened: OpenPacket, hop: Hop) -> None:
    """Halt the session when a handler failed permanently, unless its spec says that it continues."""
    work, reason = moment.session.work, str((hop.metadata or {}).get("error"))
    has_failed = reason in _FAILED or reason.startswith(_FAILED_OFTEN)
    if work is None or not has_failed or moment.session.is_terminal:
        return
    packet = opened.packet
    is_unsettled = work.unsettled.pop(packet.packet_id, None) == hop.recipient
    if is_unsettled or not work.halts_on_failure:
        return
    moment.session.document.halt_reason = (
        f"HANDLER_FAILED {hop.recipient} could not handle {packet.packet_type} {packet.packet_id}"
    )


def _opening(moment: Advance, packet: Packet, work: Work) -> None:
    if packet.sender.agent_id == moment.session.document.opener:
        work.is_started = True


def _decision(moment: Advance, packet: Packet, work: Work) -> None:
    level, sender = packet.payload_as(DecisionPayload).commitment_level, packet.sender.agent_id
    if level is CommitmentLevel.DONE and sender in work.deciders and work.done is None:
        work.done, work.done_by = packet.packet_id, sender
    elif level is CommitmentLevel.APPROVED and _is_on_done(moment, packet, work) and sender not in work.approved_by:
        work.approved_by.append(sender)


def _signal(moment: Advance, packet: Packet, work: Work) -> None:
    payload = packet.payload_as(SignalFields)
    if payload.signal is Signal.VETO and _is_on_done(moment, packet, work):
        reason = f": {payload.reason[:_LONGEST_REASON]}" if payload.reason else ""
        work.failed = f"VETO by {packet.sender.agent_id}{reason}"


def _retraction(moment: Advance, packet: Packet, work: Work) -> None:
    target: UUID = packet.payload_as(RetractionPayload).target_packet_id
    if moment.session.state == "REVIEW" and target == work.done:
        work.failed = f"the DONE was retracted by {packet.sender.agent_id}"


def _error(moment: Advance, packet: Packet, work: Work) -> None:
    """Note a delivery whose end nobody knows, or whose handler has changed: its dead letter waits for somebody.

    Halt for a handler that waited and failed when its question was refused: its delivery has ended, and no dead letter
    will tell.
    """
    if packet.payload_as(ErrorPayload).error_code == HANDLER_ERROR:
        _failed_after_its_end(moment, packet, work)
        return
    cause = moment.session.identities[packet.packet_id].cause
    opened = None if cause is None else moment.session.open.get(cause)
    if packet.payload_as(ErrorPayload).error_code not in UNSETTLED or opened is None or cause is None:
        return
    if packet.sender.agent_id in opened.recipients:
        work.unsettled[cause] = packet.sender.agent_id


def _failed_after_its_end(moment: Advance, packet: Packet, work: Work) -> None:
    session, sender, failed = moment.session, packet.sender.agent_id, packet.trace.parent_packet_id
    known = None if failed is None else session.identities.get(failed)
    opened = None if failed is None else session.open.get(failed)
    delivery = None if opened is None else opened.recipients.get(sender)
    if known is None or sender not in known.recipients or not work.halts_on_failure or session.is_terminal:
        return
    has_waited = (packet.payload_as(ErrorPayload).details or {}).get(WAITED) is True
    # The ERROR may overtake the receipt. Older workers do not say that they waited: for them the receipt decides.
    if has_waited or delivery is None or not delivery.is_open:
        session.document.halt_reason = f"HANDLER_FAILED {sender} could not handle {known.packet_type} {failed}"


def _is_on_done(moment: Advance, packet: Packet, work: Work) -> bool:
    is_reviewer = packet.sender.agent_id in work.reviewers
    return moment.session.state == "REVIEW" and is_reviewer and packet.trace.parent_packet_id == work.done


_COUNTERS: dict[PacketType, Callable[[Advance, Packet, Work], None]] = {
    PacketType.TASK_IR: _opening,
    PacketType.MESSAGE: _opening,
    PacketType.DECISION: _decision,
    PacketType.SIGNAL: _signal,
    PacketType.RETRACTION: _retraction,
    PacketType.ERROR: _error,
}

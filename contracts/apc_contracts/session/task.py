"""A session of the coordinator `task`: its questions and requests, its timers, what counts in it, what moves it.

An ASK opens a question or request; the first ANSWER, or its time, ends it.
"""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import (
    AnswerOutcome,
    AnswerSpec,
    DecisionPayload,
    ErrorPayload,
    RetractionPayload,
    SignalFields,
    SignalPayload,
)
from apc_contracts.payloads.session_signals import ROLE_PREFIX, WakeSpec
from apc_contracts.session import emissions
from apc_contracts.session.document import OpenQuestion, PendingWake, Work
from apc_contracts.session.movement import WAKE, Advance, Hop, may, start_timer, start_timer_at, timer_of, transition
from apc_contracts.session.session import OpenPacket, Session
from apc_contracts.vocabulary import (
    HANDLER_ERROR,
    ORCHESTRATOR,
    SUBSTRATE_RECIPIENT,
    UNSETTLED,
    WAITED,
    CommitmentLevel,
    PacketType,
    Signal,
)
from apc_contracts.wire.receipts import SET_ASIDE

_KIND = "ask:"


def question_timer_of(packet_id: UUID) -> str:
    """Return the kind of the deadline of a question."""
    return f"{_KIND}{packet_id}"


def question_of_timer(kind: str) -> UUID | None:
    """Return the question whose deadline this is; None for other deadlines."""
    return UUID(kind.removeprefix(_KIND)) if kind.startswith(_KIND) else None


def note_question(moment: Advance, opened: OpenPacket, work: Work) -> None:
    """Open a question by its ASK, or end it by its ANSWER."""
    packet = opened.packet
    payload = packet.payload
    if not isinstance(payload, SignalPayload):
        return
    if payload.signal is Signal.ASK:
        _open(moment, opened, packet, payload, work)
    elif payload.signal is Signal.ANSWER and packet.trace.parent_packet_id is not None:
        _end(moment, packet.trace.parent_packet_id, work)


def expire_question(moment: Advance, packet_id: UUID) -> None:
    """Answer a question whose time is over, in the name of the orchestrator."""
    work = moment.session.work
    question = None if work is None else work.questions.get(packet_id)
    if question is None:
        return
    payload = SignalPayload(signal=Signal.ANSWER, answer=AnswerSpec(outcome=AnswerOutcome.TIMED_OUT))
    ends_at = moment.session.document.deadlines.get("deadline")
    emissions.emit(moment, PacketType.SIGNAL, payload, parent=packet_id, recipient=question.asker, expires_at=ends_at)


def _open(moment: Advance, opened: OpenPacket, packet: Packet, payload: SignalPayload, work: Work) -> None:
    due = payload.expected_response_by
    assert due is not None, "an ASK says until when it waits"
    named = packet.recipients[0].agent_id
    work.questions[packet.packet_id] = OpenQuestion(
        asker=packet.sender.agent_id,
        may_answer=list(opened.recipients),
        role=named.removeprefix(ROLE_PREFIX) if named.startswith(ROLE_PREFIX) else "",
        payload_hash=opened.received.payload_hash.hex(),
        asked_at=moment.now,
        due_at=start_timer_at(moment, question_timer_of(packet.packet_id), due),
        returns="" if payload.request is None else payload.request.returns,
    )
    if payload.question is not None and payload.question.answer_schema is not None:
        moment.session.keep_answer_schema(packet.packet_id, packet.sender.agent_id, payload.question.answer_schema)


def _end(moment: Advance, packet_id: UUID, work: Work) -> None:
    asked = work.questions.pop(packet_id, None)
    if asked is not None:
        moment.session.document.deadlines.pop(question_timer_of(packet_id), None)
        moment.session.drop_answer_schema(packet_id, asked.asker)


# Timers of agents in a session of the coordinator `task`: set by a WAKE, and sent back as one when they are due.


def wake_of_timer(kind: str) -> UUID | None:
    """Return the WAKE whose deadline this is; None for other deadlines."""
    return UUID(kind.removeprefix(WAKE)) if kind.startswith(WAKE) else None


def note_wake(moment: Advance, packet: Packet, work: Work) -> None:
    """Set a timer by an agent's WAKE; one with the same key is replaced."""
    payload, agent = packet.payload, packet.sender.agent_id
    if not isinstance(payload, SignalPayload) or payload.wake is None or agent == ORCHESTRATOR:
        return
    wake, deadlines = payload.wake, moment.session.document.deadlines
    for earlier in [
        packet_id for packet_id, pending in work.wakes.items() if (pending.agent, pending.key) == (agent, wake.key)
    ]:
        del work.wakes[earlier]
        deadlines.pop(timer_of(earlier), None)
    kind = timer_of(packet.packet_id)
    if wake.at is not None:
        deadlines[kind] = wake.at
    else:
        start_timer(moment, kind, wake.after_ms or 0)
    work.wakes[packet.packet_id] = PendingWake(agent, wake.key, deadlines[kind], is_absolute=wake.at is not None)


def expire_wake(moment: Advance, packet_id: UUID) -> None:
    """Send a timer that is due back to its agent; it waits there until the session ends."""
    work, document = moment.session.work, moment.session.document
    pending = None if work is None else work.wakes.pop(packet_id, None)
    if pending is None:
        return
    payload = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key=pending.key, at=pending.due_at))
    emissions.emit(
        moment,
        PacketType.SIGNAL,
        payload,
        parent=packet_id,
        recipient=pending.agent,
        expires_at=document.deadlines.get("deadline"),
    )


def end_all(moment: Advance) -> None:
    """Cancel every wait and timer when the session ends; its deadlines are gone already."""
    work = moment.session.work
    if work is not None:
        for packet_id, asked in work.questions.items():
            moment.session.drop_answer_schema(packet_id, asked.asker)
        work.questions.clear()
        work.wakes.clear()
        work.unsettled.clear()


# How an accepted packet counts in a session of the coordinator `task`, whatever round its parent is of.

_FAILED = ("handler_error", "delivery_limit", SET_ASIDE)
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
    work, said = moment.session.work, hop.metadata or {}
    reason = str(said.get("error"))
    has_failed = "set_aside" in said or reason in _FAILED or reason.startswith(_FAILED_OFTEN)
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


# The events of the coordinator `task`, checked after every packet, receipt and timer.

STALL = "stall"
_TOLD = frozenset({PacketType.ACK, PacketType.NACK, PacketType.ERROR})
STALL_MS = 60_000
"""A session in which nothing is open for this long halts."""


def work(moment: Advance) -> None:
    """Raise the event of the state, when its condition holds."""
    found = moment.session.work
    assert found is not None, "a session of the coordinator task has work"
    state = moment.session.state
    if state == "SESSION_OPEN":
        if found.is_started and may(moment, "work_started"):
            transition(moment, "work_started")
            moment.session.document.deadlines.pop("open", None)
    elif state == "WORKING" and found.done is not None:
        event = "review_requested" if found.reviewers else "work_done"
        if may(moment, event):
            transition(moment, event, _facts(found))
    elif state == "REVIEW":
        _review(moment, found)


def watch(moment: Advance) -> bool:
    """Start the stall timer when nothing is open in a running session; stop it when something is.

    Return whether it was started: the log must then tell when.
    """
    session, deadlines = moment.session, moment.session.document.deadlines
    work = session.work
    if work is None or session.is_terminal or session.is_paused:
        return False
    if moment.effects.ended:
        work.last_end = f"packet {moment.cause} at {moment.effects.ended[-1]}"
    if session.state == "SESSION_OPEN" or not is_idle(session):
        deadlines.pop(STALL, None)
    elif STALL not in deadlines or moment.effects.hops:
        start_timer(moment, STALL, STALL_MS)
        return True
    return False


def is_idle(session: Session) -> bool:
    """Return whether no delivery, verification, dead letter, held packet, awaited ACK, question or timer is open.

    Deliveries of the orchestrator's own signals do not count, nor dead letters of what the opener is only told: nothing
    follows from them, and a client that opens sessions has no inbox.
    """
    document, work = session.document, session.work
    if document.verifying or session.held or document.pending_acks:
        return False
    if work is not None and (work.questions or work.wakes):
        return False
    # The newest first: while work goes on, one of these is open.
    for opened in reversed(session.open.values()):
        packet = opened.packet
        if packet.sender.agent_id == ORCHESTRATOR and packet.packet_type is PacketType.SIGNAL:
            continue
        for recipient, progress in opened.recipients.items():
            is_told = recipient == document.opener and packet.packet_type in _TOLD
            is_open = progress.is_open and recipient != SUBSTRATE_RECIPIENT
            if is_open or (progress.state == "DEAD_LETTERED" and not is_told):
                return False
    return True


def _review(moment: Advance, found: Work) -> None:
    document = moment.session.document
    if len(found.approved_by) >= found.approvals and may(moment, "review_passed"):
        transition(moment, "review_passed", _facts(found))
        return
    if found.failed is None:
        return
    if document.round >= document.max_rounds or not may(moment, "review_failed"):
        document.halt_reason = f"REVIEW_FAILED {found.failed}"
        return
    transition(moment, "review_failed", _facts(found) | {"reason": found.failed})
    document.last_generations[str(document.round)] = document.generation
    document.round += 1
    found.done, found.done_by, found.failed = None, "", None
    found.approved_by.clear()


def _facts(found: Work) -> dict[str, Any]:
    return {"done": str(found.done), "done_by": found.done_by, "approved_by": list(found.approved_by)}

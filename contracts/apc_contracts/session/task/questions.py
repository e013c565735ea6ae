"""Questions and requests of a session of the coordinator `task`.

An ASK opens one; the first ANSWER, or its time, ends it.
"""

from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.questions import AnswerOutcome, AnswerSpec
from apc_contracts.payloads.session_signals import ROLE_PREFIX
from apc_contracts.session import emissions
from apc_contracts.session.document import OpenQuestion, Work
from apc_contracts.session.movement import Advance, start_timer_at
from apc_contracts.session.session import OpenPacket
from apc_contracts.vocabulary import PacketType, Signal

_KIND = "ask:"


def timer_of(packet_id: UUID) -> str:
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


def expire(moment: Advance, packet_id: UUID) -> None:
    """Answer a question whose time is over, in the name of the gate."""
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
        due_at=start_timer_at(moment, timer_of(packet.packet_id), due),
        returns="" if payload.request is None else payload.request.returns,
    )


def _end(moment: Advance, packet_id: UUID, work: Work) -> None:
    if work.questions.pop(packet_id, None) is not None:
        moment.session.document.deadlines.pop(timer_of(packet_id), None)

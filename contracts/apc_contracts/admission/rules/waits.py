"""Rules for SIGNAL ASK, ANSWER and WAKE.

Who may ask, whom, for how long, who may answer (docs/how-to/approvals.md); who may set a timer (docs/how-to/timers.md).
"""

from datetime import datetime, timedelta

from apc_contracts.admission.case import Case
from apc_contracts.judging.session_view import QuestionPlaces, WakePlaces
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import OF_AGENTS, OF_THE_GATE, AnswerSpec, SignalFields, SignalPayload
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.vocabulary import ORCHESTRATOR, Signal

MOST_QUESTIONS = 256
"""Open questions of one session: they are part of its document, which every log batch carries."""


def may_ask(case: Case) -> Refusal | None:
    """Refuse an ASK in a session without questions, and one that nobody could answer in time."""
    payload = _signal(case, Signal.ASK)
    if payload is None or case.session is None:
        return None
    places, due = case.session.question_places(None), payload.expected_response_by
    if places is None or due is None:
        message = f"contract {case.contract.name} knows no questions: ask in a session of the coordinator task"
        return _refused("may_ask", "payload.signal", message)
    if due <= case.facts.now:
        return _refused("may_ask", "payload.expected_response_by", "this time is over: wait for longer")
    asked = [recipient.agent_id for recipient in case.packet.recipients]
    if payload.request is not None and case.sender_id in asked:
        path = f"recipients[{asked.index(case.sender_id)}]"
        return _refused("may_ask", path, f"{case.sender_id} asks itself: name another agent")
    if places.ends_at is not None and due > places.ends_at:
        message = f"the session ends at {places.ends_at.isoformat()}: wait for a shorter time"
        return _refused("may_ask", "payload.expected_response_by", message)
    return None


def may_answer(case: Case) -> Refusal | None:
    """Refuse an ANSWER to no open question, by somebody who was not asked, or to what was not read."""
    payload = _signal(case, Signal.ANSWER)
    if payload is None or payload.answer is None or case.session is None:
        return None
    if payload.answer.outcome in OF_THE_GATE:
        message = f"only the gate answers {payload.answer.outcome}: approve or deny"
        return _refused("may_answer", "payload.answer.outcome", message)
    places = case.session.question_places(case.packet.trace.parent_packet_id)
    if places is None or not places.asker:
        message = "this is no open question: it was answered, its time is over, or nobody asked it"
        return _refused("may_answer", "trace.parent_packet_id", message)
    return _not_asked(case, places) or _not_read(case, payload, places) or _not_returned(payload.answer, places)


def questions_have_room(case: Case) -> Refusal | None:
    """Refuse an ASK beyond the bound of open questions."""
    if _signal(case, Signal.ASK) is None or case.session is None:
        return None
    places = case.session.question_places(None)
    if places is None or places.open_questions < MOST_QUESTIONS:
        return None
    message = f"the session has {places.open_questions} open questions, the limit is {MOST_QUESTIONS}: ask later"
    return Refusal("OVERLOADED", "questions_have_room", "payload.signal", message)


def is_answer(case: Case) -> bool:
    """Return whether the packet answers a question: `may_answer` decides, and no membership is needed."""
    return _signal(case, Signal.ANSWER) is not None


def places_read(case: Case) -> QuestionPlaces | None:
    """Return what these rules read of the session, for the record of a refusal."""
    if case.session is None:
        return None
    if is_answer(case):
        return case.session.question_places(case.packet.trace.parent_packet_id)
    return case.session.question_places(None) if _signal(case, Signal.ASK) is not None else None


def may_wake(case: Case) -> Refusal | None:
    """Refuse a WAKE in a session without timers, to anybody but the gate, and beyond the session's end."""
    wake = wake_of(case)
    if wake is None or case.session is None:
        return None
    places = wake_places(case, wake)
    if places is None:
        message = f"contract {case.contract.name} knows no timers: set one in a session of the coordinator task"
        return _refused("may_wake", "payload.signal", message)
    if [recipient.agent_id for recipient in case.packet.recipients] != [ORCHESTRATOR]:
        return _refused("may_wake", "recipients", f"the gate keeps timers: send WAKE to {ORCHESTRATOR} alone")
    if places.ends_at is not None and _due(wake, case.facts.now) > places.ends_at:
        path = "payload.wake.at" if wake.at is not None else "payload.wake.after_ms"
        return _refused("may_wake", path, f"the session ends at {places.ends_at.isoformat()}: set an earlier time")
    return None


def wakes_have_room(case: Case) -> Refusal | None:
    """Refuse a WAKE of a new key beyond the bound of pending ones."""
    wake, bound = wake_of(case), case.contract.limits.wakes
    places = None if wake is None else wake_places(case, wake)
    if places is None or places.is_pending or places.pending < bound:
        return None
    message = f"the session has {places.pending} pending wakes, the limit is {bound}: use a key again, or wake later"
    return Refusal("OVERLOADED", "wakes_have_room", "payload.wake", message)


def wake_of(case: Case) -> WakeSpec | None:
    """Return the timer that a packet sets."""
    payload = case.packet.payload
    is_wake = isinstance(payload, SignalPayload) and payload.signal is Signal.WAKE
    return payload.wake if isinstance(payload, SignalPayload) and is_wake else None


def wake_places(case: Case, wake: WakeSpec) -> WakePlaces | None:
    """Return what these rules read of the session."""
    return None if case.session is None else case.session.wake_places(case.sender_id, wake.key)


def _not_asked(case: Case, places: QuestionPlaces) -> Refusal | None:
    sender, is_still = case.sender_id, case.sender is None or places.role in ("", case.sender.role)
    if sender == places.asker:
        return _refused("may_answer", "sender.agent_id", f"{sender} asked this itself: somebody else answers")
    if sender not in places.may_answer or not is_still:
        asked = f"role {places.role}" if places.role else ", ".join(places.may_answer)
        return _refused("may_answer", "sender.agent_id", f"{sender} was not asked, or has left: {asked} may answer")
    return None


def _not_read(case: Case, payload: SignalPayload, places: QuestionPlaces) -> Refusal | None:
    if [recipient.agent_id for recipient in case.packet.recipients] != [places.asker]:
        return _refused("may_answer", "recipients", f"the answer goes to {places.asker}, who asked: name it alone")
    if payload.answer is not None and payload.answer.seen != places.payload_hash:
        message = "the question has another payload hash: answer what was asked"
        return _refused("may_answer", "payload.answer.seen", message)
    return None


def _not_returned(answer: AnswerSpec, places: QuestionPlaces) -> Refusal | None:
    """Refuse the outcome of a request for a question, the other way round, and a result of another schema."""
    if (answer.outcome in OF_AGENTS) != bool(places.returns):
        expected = "answered or failed" if places.returns else "approved or denied"
        return _refused("may_answer", "payload.answer.outcome", f"this ends as {expected}")
    if answer.result is not None and answer.result.schema_id != places.returns:
        message = f"the request is answered with {places.returns}: return that"
        return _refused("may_answer", "payload.answer.result.schema", message)
    return None


def _due(wake: WakeSpec, now: datetime) -> datetime:
    return wake.at if wake.at is not None else now + timedelta(milliseconds=wake.after_ms or 0)


def _signal(case: Case, signal: Signal) -> SignalPayload | None:
    payload = case.packet.payload_as(SignalFields)
    return payload if isinstance(payload, SignalPayload) and payload.signal is signal else None


def _refused(rule: str, path: str, message: str) -> Refusal:
    return Refusal("NOT_AUTHORIZED", rule, path, message)

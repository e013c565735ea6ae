"""Rules for SIGNAL ASK and ANSWER: who may ask, whom, for how long, and who may answer (docs/how-to/approvals.md)."""

from apc_contracts.admission.case import Case
from apc_contracts.judging.session_view import QuestionPlaces
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import SignalFields, SignalPayload
from apc_contracts.payloads.questions import OF_THE_GATE
from apc_contracts.vocabulary import Signal

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
    return _not_asked(case, places) or _not_read(case, payload, places)


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


def _not_asked(case: Case, places: QuestionPlaces) -> Refusal | None:
    sender, is_still = case.sender_id, case.sender is None or places.role in ("", case.sender.role)
    if sender == places.asker:
        return _refused("may_answer", "sender.agent_id", f"{sender} asked this itself: somebody else answers")
    if sender not in places.may_answer or not is_still:
        asked = f"role {places.role}" if places.role else ", ".join(places.may_answer)
        return _refused("may_answer", "sender.agent_id", f"{sender} was not asked, or has left: {asked} may answer")
    return None


def _not_read(case: Case, payload: SignalPayload, places: QuestionPlaces) -> Refusal | None:
    if [one.agent_id for one in case.packet.recipients] != [places.asker]:
        return _refused("may_answer", "recipients", f"the answer goes to {places.asker}, who asked: name it alone")
    if payload.answer is not None and payload.answer.seen != places.payload_hash:
        message = "the question has another payload hash: answer what was asked"
        return _refused("may_answer", "payload.answer.seen", message)
    return None


def _signal(case: Case, signal: Signal) -> SignalPayload | None:
    payload = case.packet.payload_as(SignalFields)
    return payload if isinstance(payload, SignalPayload) and payload.signal is signal else None


def _refused(rule: str, path: str, message: str) -> Refusal:
    return Refusal("NOT_AUTHORIZED", rule, path, message)

"""What each state of a session of the coordinator `task` waits for (docs/explanation/contracts.md)."""

from datetime import datetime
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.explanation.surroundings import Surroundings
from apc_contracts.explanation.words import Wait
from apc_contracts.session.document import OpenQuestion, SessionDocument, TaskDocument

MOST_NAMED = 5
"""Open questions, and timers, that are named one by one."""
_HALTS = "the session is HALTED"


def task_opening(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for the opener's first work."""
    opener = (document.opener,)
    moves = f"{document.opener} sends a TASK_IR or a MESSAGE." + around.advice(opener)
    whom = tuple(map(around.describe, opener))
    due = document.deadlines.get("open")
    return [Wait("the opener's TASK_IR or MESSAGE", moves, whom, due, f"{_HALTS} (NOT_STARTED)")]


def task_working(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for a decider's DONE, and the deadline that comes first."""
    if not isinstance(document, TaskDocument):
        return []
    deciders = tuple(document.work.deciders)
    moves = "A decider sends a DECISION with commitment_level DONE." + around.advice(deciders)
    whom = tuple(map(around.describe, deciders))
    return [Wait("DECISION DONE of a decider", moves, whom, *_first_deadline(document))]


def task_review(document: SessionDocument, around: Surroundings, contract: Contract) -> list[Wait]:
    """Return the wait for the approvals that are missing."""
    if not isinstance(document, TaskDocument):
        return []
    work = document.work
    left = tuple(reviewer for reviewer in work.reviewers if reviewer not in work.approved_by)
    missing = work.approvals - len(work.approved_by)
    what = f"{missing} more {'approval' if missing == 1 else 'approvals'} of the DONE {work.done} by {work.done_by}"
    moves = (
        f"A reviewer sends DECISION APPROVED with {work.done} as parent; a VETO sends the work back"
        f" (round {document.round} of {document.max_rounds})." + around.advice(left)
    )
    return [Wait(what, moves, tuple(map(around.describe, left)), *_first_deadline(document))]


def waits_of_handlers(document: SessionDocument, around: Surroundings) -> list[Wait]:
    """Return the questions, requests and timers that are open, the one that is due first first."""
    if not isinstance(document, TaskDocument):
        return []
    asked = sorted(document.work.questions.items(), key=lambda one: one[1].due_at)
    waits = [_question(packet_id, question, around) for packet_id, question in asked[:MOST_NAMED]]
    for wake in sorted(document.work.wakes.values(), key=lambda one: one.due_at)[:MOST_NAMED]:
        then = f"the gate sends it to {wake.agent}"
        waits.append(Wait(f"the timer {wake.key} of {wake.agent}", "Its time comes.", (), wake.due_at, then))
    return waits


def _question(packet_id: UUID, question: OpenQuestion, around: Surroundings) -> Wait:
    then = f"{question.asker} is told that nobody answered"
    if question.returns:
        what = f"the answer to request {packet_id} of {question.asker}, with a result of {question.returns}"
        moves = "The handler of the asked agent ends." + around.advice(tuple(question.may_answer))
        return Wait(what, moves, tuple(map(around.describe, question.may_answer)), question.due_at, then)
    what = f"the answer to question {packet_id} of {question.asker}"
    moves = f"One of them answers: `apc approval approve {packet_id}` or `apc approval deny {packet_id}`."
    return Wait(what, moves, tuple(question.may_answer), question.due_at, then)


def _first_deadline(document: SessionDocument) -> tuple[datetime | None, str]:
    known = {kind: document.deadlines[kind] for kind in ("stall", "deadline") if kind in document.deadlines}
    if not known:
        return None, ""
    kind = min(known, key=lambda one: known[one])
    return known[kind], f"{_HALTS} ({'STALLED: nothing is open' if kind == 'stall' else 'DEADLINE'})"

"""What came of a session, for its page: the result, who approved, what failed, and what is open to doubt."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from apc_contracts.content import natural_text, typed_content
from apc_contracts.explanation.failure import Failure
from apc_contracts.session.document import SessionDocument, TaskDocument
from apc_log.queries import DeadDelivery
from apc_log.queries.failures import failures_of, halting_failure
from apc_log.queries.outcomes import SaidRow, find_done, list_answers, list_reviews, states_entered
from apc_log.queries.packet_pages import places_of_packets
from apc_log.queries.packets import Position
from apc_web.contents import Said, Spoken, said_at
from apc_web.models import ApiModel, NamedCount, Sender, Shown, column
from apc_web.route_services import Reading
from apc_web.runs import (
    BudgetPart,
    HeldPacketSummary,
    SessionDeadline,
    SessionMachine,
    SessionMember,
    SessionSummary,
    SessionWait,
    StaleDecisionSummary,
)


class EnteredState(ApiModel):
    """A state that a session entered."""

    name: Shown[str]
    seq: Shown[int]
    """Position of the entry that led there first; 0 for the state in which it was opened."""


class SessionResult(Spoken):
    """The DECISION that ended the work of a session."""

    packet_id: Shown[UUID]
    sender: Shown[Sender]
    at: Annotated[Shown[datetime], column("at", "judged_at")]
    schema_id: str | None = None
    """Of the result that it carries."""
    content: dict[str, Any] | None = None
    said: str = ""
    """What it says in words."""


class SessionApproval(ApiModel):
    """An answer of a person to a question, or a reviewer's word on the DONE."""

    packet_id: Shown[UUID]
    question_id: Shown[UUID | None]
    """What it answers: the question, or the DONE."""
    by: Shown[str]
    at: Shown[datetime]
    outcome: str
    """approved, denied or timed_out."""
    note: str | None
    asked: str
    """What it answers, in a line."""


class FailedAfter(ApiModel):
    """The last delivery that was handled before a failure."""

    packet_id: Shown[UUID]
    packet_type: Shown[str]
    recipient: Shown[str]
    at: Shown[datetime]


class SessionFailure(Spoken):
    """A delivery that its recipient could not handle. `line` is what its packet says."""

    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[str]
    recipient: Shown[str]
    attempt: Shown[int]
    at: Shown[datetime | None]
    is_dead: Shown[bool]
    """It is a dead letter now."""
    is_halted: Shown[bool]
    """It halted the session, or the session has halted since."""
    handled: str
    """What the handler takes: a schema, or a type of packet."""
    exception_type: str | None
    exception: str | None
    """Type and text, as the handler raised it last."""
    why: str
    sentence: str
    remedy: str
    next_command: str
    last_good: Shown[FailedAfter | None]


class SessionDetail(SessionSummary):
    """Everything about one session but its packets."""

    step: Shown[int]
    generation_limit: Shown[int]
    max_rounds: Shown[int]
    opener: Shown[str]
    paused_at: Shown[datetime | None]
    first_seq: Shown[int]
    """Position of its first packet in the log of its shard."""
    last_seq: Shown[int]
    """Position of its last entry."""
    packets: Shown[int]
    verdicts: Shown[list[NamedCount]]
    """Packets by verdict on arrival."""
    refusals: Shown[list[NamedCount]]
    """Refused packets by code, the most frequent first."""
    dead: Shown[int]
    """Deliveries that are dead letters now."""
    waits: Shown[list[SessionWait]]
    budgets: Shown[list[BudgetPart]]
    members: Shown[list[SessionMember]]
    deadlines: Shown[list[SessionDeadline]]
    held: Shown[list[HeldPacketSummary]]
    stale_decisions: list[StaleDecisionSummary]
    """The newest, at most 5."""
    machine: Shown[SessionMachine]
    coordinator: Shown[str]
    """research or task: only research has generations, scores and arbitrations."""
    entered: Shown[list[EnteredState]]
    """The states that it entered, in that order."""
    result: Shown[SessionResult | None]
    approvals: Shown[list[SessionApproval]]
    failures: Shown[list[SessionFailure]]
    """What halted it first, then its newest dead letters; at most 5."""
    failed_verifications: Shown[int]
    refused_usage: Shown[int]
    """Reports of tokens and cost of which a part was not charged."""
    doubts: list[str]
    """What is open to doubt beside its failures, a sentence each."""


_MOST_FAILURES = 5


async def failures_in(reading: Reading, document: SessionDocument, dead: list[DeadDelivery]) -> list[SessionFailure]:
    """Return what failed in a session, what halted it first, then its newest dead letters; at most 5."""
    pool = reading.pool
    halting = await halting_failure(pool, document.session_id, document.halt_reason)
    others = await failures_of(pool, dead[: -_MOST_FAILURES - 1 : -1], looks_back=True)
    found = [*([halting] if halting else ()), *(one for one in others if not _is_same(one, halting))]
    shown = found[:_MOST_FAILURES]
    said = await said_at(pool, reading.schemas, shown)
    return [_failure(one, said) for one in shown]


def _is_same(one: Failure, other: Failure | None) -> bool:
    return other is not None and (one.packet_id, one.recipient) == (other.packet_id, other.recipient)


def _failure(failure: Failure, said: Mapping[Position, Said]) -> SessionFailure:
    good = None if failure.last_good is None else FailedAfter.of(failure.last_good)
    own = said.get(Position(failure.shard, failure.seq), Said())
    return SessionFailure.of(own, failure, last_good=good)


# The result, and who approved it.


async def result_of(reading: Reading, document: SessionDocument) -> SessionResult | None:
    """Return the DECISION that ended the work of a session; None while there is none."""
    named = document.work.done if isinstance(document, TaskDocument) else None
    if isinstance(document, TaskDocument) and named is None:
        return None
    row = await find_done(reading.pool, document.session_id, named)
    if row is None:
        return None
    said = (await said_at(reading.pool, reading.schemas, [row])).get(Position(row.shard, row.seq), Said())
    schema_id, content = typed_content(row.payload) or (None, None)
    return SessionResult.of(
        said,
        row,
        schema_id=schema_id,
        content=None if content is None else dict(content),
        said=natural_text("DECISION", row.payload),
    )


async def approvals_in(reading: Reading, document: SessionDocument) -> list[SessionApproval]:
    """Return the answers of people in a session, and the words of its reviewers on the DONE, in their order."""
    pool = reading.pool
    rows = await list_answers(pool, document.session_id)
    done = document.work.done if isinstance(document, TaskDocument) and document.work.reviewers else None
    if done is not None:
        rows += await list_reviews(pool, document.session_id, done)
    asked = await lines_of(reading, document.session_id, {row.parent_packet_id for row in rows})
    return [approval_of(row, asked.get(row.parent_packet_id, "")) for row in rows]


async def lines_of(reading: Reading, session_id: str, ids: set[UUID | None]) -> dict[UUID | None, str]:
    """Return what packets of a session say in a line, by their ids."""
    places = await places_of_packets(reading.pool, session_id, [one for one in ids if one is not None])
    said = await said_at(reading.pool, reading.schemas, places.values())
    return {packet_id: said[place].line for packet_id, place in places.items() if place in said}


def approval_of(row: SaidRow, asked: str) -> SessionApproval:
    """Return an answer, or a reviewer's DECISION, as an approval."""
    answer, level = row.payload.get("answer"), row.payload.get("commitment_level")
    told = answer if isinstance(answer, dict) else {"outcome": str(level or "").lower(), "note": _advice(row)}
    return SessionApproval(
        packet_id=row.packet_id,
        question_id=row.parent_packet_id,
        by=row.sender_agent_id,
        at=row.judged_at,
        outcome=str(told.get("outcome") or ""),
        note=told.get("note") or None,
        asked=asked,
    )


def _advice(row: SaidRow) -> str | None:
    said = row.payload.get("recommendation")
    return said if isinstance(said, str) else None


async def entered_by(reading: Reading, session_id: str, first: str) -> list[EnteredState]:
    """Return the states that a session entered, in that order."""
    rows = await states_entered(reading.pool, session_id)
    return [EnteredState(name=first, seq=0), *(EnteredState(name=row["name"], seq=row["seq"]) for row in rows)]

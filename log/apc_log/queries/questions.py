"""Questions to people, open and answered, and the verdicts that others wait for; requests are none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack
from uuid import UUID

import asyncpg
import orjson

from apc_log.heads import Reach, bounded, is_newest_page, of_given, read_range, reads

_OPEN = """
SELECT session.session_id, session.run_id, session.document ->> 'task_id' AS task_id, question.key::uuid AS packet_id,
       question.value AS question, session.document ->> 'run_phase' AS run_phase,
       (session.document -> 'deadlines' ->> 'deadline')::timestamptz AS ends_at,
       packet.packet -> 'payload' -> 'question' AS asked, denial.people AS denied_by,
       (packet.packet -> 'trace' ->> 'root_packet_id')::uuid AS root_packet_id
FROM apc_log.sessions AS session
CROSS JOIN LATERAL jsonb_each(coalesce(session.document -> 'work' -> 'questions', '{}')) AS question
LEFT JOIN apc_log.packets AS packet ON packet.session_id = session.session_id AND packet.packet_id = question.key::uuid
LEFT JOIN LATERAL (
    SELECT array_agg(DISTINCT answer.answered_by) AS people FROM apc_log.answers AS answer
    JOIN apc_log.packets AS earlier ON earlier.session_id = answer.session_id AND earlier.packet_id = answer.question_id
    WHERE answer.session_id = session.session_id AND answer.outcome = 'denied'
      AND coalesce(earlier.packet #> '{payload,question,content}', earlier.packet #> '{payload,question,text}')
        = coalesce(packet.packet #> '{payload,question,content}', packet.packet #> '{payload,question,text}')
) AS denial ON true
WHERE NOT session.is_terminal AND ($1::uuid IS NULL OR question.key = $1::text)
  AND ($2::text IS NULL OR session.session_id = $2) AND coalesce(question.value ->> 'returns', '') = ''
ORDER BY question.value ->> 'due_at', packet_id LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """An open question. `text`, `content` and `answer_schema` are None when the body is encrypted or was erased."""

    packet_id: UUID
    session_id: str
    run_id: str
    task_id: str
    run_phase: str
    root_packet_id: UUID | None
    ends_at: datetime | None
    asker: str
    may_answer: tuple[str, ...]
    role: str
    payload_hash: str
    asked_at: datetime
    due_at: datetime
    text: str | None
    content: dict[str, Any] | None
    denied_by: tuple[str, ...] = ()
    """Who denied the same before in this session: the same content, or without one the same text."""
    answer_schema: dict[str, Any] | None = None
    """JSON Schema of the fields that who approves fills in; None = it asks for none."""

    @property
    def denial(self) -> str:
        """A sentence that says so; "" when nobody has."""
        return f"the same was denied before by {', '.join(self.denied_by)}" if self.denied_by else ""


async def list_questions(
    pool: asyncpg.Pool, *, packet_id: UUID | None = None, session_id: str | None = None, limit: int = 100
) -> list[QuestionRow]:
    """Return open questions, the one that is due first first."""
    return [_row(record) for record in await pool.fetch(_OPEN, packet_id, session_id, limit)]


def _row(record: asyncpg.Record) -> QuestionRow:
    question = orjson.loads(record["question"])
    asked = orjson.loads(record["asked"]) if record["asked"] is not None else {}
    return QuestionRow(
        packet_id=record["packet_id"],
        session_id=record["session_id"],
        run_id=record["run_id"],
        task_id=record["task_id"],
        run_phase=record["run_phase"],
        root_packet_id=record["root_packet_id"],
        ends_at=record["ends_at"],
        asker=question["asker"],
        may_answer=tuple(question["may_answer"]),
        role=question["role"],
        payload_hash=question["payload_hash"],
        asked_at=datetime.fromisoformat(question["asked_at"]),
        due_at=datetime.fromisoformat(question["due_at"]),
        text=asked.get("text"),
        content=asked.get("content"),
        denied_by=tuple(record["denied_by"] or ()),
        answer_schema=asked.get("answer_schema"),
    )


# Answered questions, the newest answer first, and what followed each.

_ANSWERED = """
SELECT answer.shard, answer.seq, answer.at AS answered_at, answer.session_id, answer.question_id, answer.answer_id,
       answer.answered_by, answer.outcome, asked.run_id, asked.task_id, asked.sender_agent_id AS asker,
       asked.recipients AS may_answer, asked.judged_at AS asked_at, asked.cause_packet_id AS handled_id,
       apc_log.document_in(asked.body_stored) #>> '{payload,question,text}' AS text,
       apc_log.document_in(asked.body_stored) #> '{payload,question,content}' AS content,
       apc_log.document_in(asked.body_stored) #> '{payload,question,answer_schema}' AS answer_schema,
       apc_log.document_in(said.body_stored) #>> '{payload,answer,note}' AS note,
       apc_log.document_in(said.body_stored) #> '{payload,answer,content}' AS answer
FROM (
    SELECT * FROM apc_log.answers
    WHERE ($1::text IS NULL OR session_id = $1) AND ($2::timestamptz IS NULL OR at >= $2)
      AND ($3::timestamptz IS NULL OR at < $3) AND ($4::timestamptz IS NULL OR (at, shard, seq) < ($4, $5, $6))
    ORDER BY at DESC, shard DESC, seq DESC LIMIT $7
) AS answer
JOIN apc_log.agent_packets AS said ON said.shard = answer.shard AND said.seq = answer.seq /*within said*/
JOIN apc_log.packet_ids AS named ON named.session_id = answer.session_id AND named.packet_id = answer.question_id
  AND named.shard = answer.shard AND named.seq < answer.seq /*within named*/
JOIN apc_log.agent_packets AS asked ON asked.shard = named.shard AND asked.seq = named.seq /*within asked*/
ORDER BY answer.at DESC, answer.shard DESC, answer.seq DESC
"""
# The handler's packets name the answer as their evidence, whatever they say.
_FOLLOWED = """
SELECT given.answer_id, packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.sender, packet.verdict,
       packet.refusal_code, packet.at
FROM unnest($1::text[], $2::uuid[], $3::integer[], $4::bigint[]) WITH ORDINALITY
    AS given(session_id, answer_id, shard, seq, number)
CROSS JOIN LATERAL (
    SELECT shard, seq, packet_id, packet_type, sender_agent_id AS sender, verdict, refusal_code, judged_at AS at
    FROM apc_log.agent_packets AS one
    WHERE one.refers_to @> ARRAY['packet:' || given.answer_id] AND one.session_id = given.session_id
      AND one.shard = given.shard AND one.seq > given.seq /*within one*/
    ORDER BY one.seq LIMIT 5
) AS packet
ORDER BY given.number, packet.seq
"""


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """A question that has ended. Texts and documents are None when a body is encrypted or was erased."""

    shard: int
    seq: int
    answered_at: datetime
    session_id: str
    question_id: UUID
    answer_id: UUID
    answered_by: str
    """The person; the orchestrator when the time was over."""
    outcome: str
    run_id: str
    task_id: str
    asker: str
    may_answer: list[str]
    asked_at: datetime
    handled_id: UUID | None
    """The packet whose handler asked."""
    text: str | None
    content: dict[str, Any] | None
    note: str | None
    answer_schema: dict[str, Any] | None
    answer: dict[str, Any] | None
    """What was filled in, which fits `answer_schema`."""


@dataclass(frozen=True, slots=True)
class FollowedRow:
    """A packet that names an answer as its evidence."""

    answer_id: UUID
    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    sender: str
    verdict: str
    refusal_code: str | None
    at: datetime


_DOCUMENTS = ("content", "answer_schema", "answer")


class AnsweredFilters(TypedDict, total=False):
    """What narrows answered questions: their session, and when they were answered."""

    session_id: str | None
    since: datetime | None
    until: datetime | None


@reads(of_given, enough=is_newest_page)
async def list_answered(
    pool: asyncpg.Pool,
    *,
    after: tuple[datetime, int, int] | None = None,
    limit: int = 50,
    **filters: Unpack[AnsweredFilters],
) -> list[AnsweredRow]:
    """Return answered questions, the newest answer first, behind `after` (answered_at, shard, seq)."""
    session_id = filters.get("session_id")
    bounds = None if session_id is None else await read_range(pool, [session_id])
    given = (session_id, filters.get("since"), filters.get("until"))
    rows = await pool.fetch(*bounded(_ANSWERED, bounds, *given, *(after or (None, None, None)), limit))
    return [
        AnsweredRow(**{**row, **{name: None if row[name] is None else orjson.loads(row[name]) for name in _DOCUMENTS}})
        for row in rows
    ]


@reads(lambda given: Reach(sessions={one.session_id for one in given["answers"]}))
async def followed_of(pool: asyncpg.Pool, answers: Sequence[AnsweredRow]) -> dict[UUID, list[FollowedRow]]:
    """Return the first packets that rest on each answer, at most five."""
    found: dict[UUID, list[FollowedRow]] = {one.answer_id: [] for one in answers}
    if not answers:
        return found
    sessions = [one.session_id for one in answers]
    given = (sessions, list(found), [one.shard for one in answers], [one.seq for one in answers])
    for row in await pool.fetch(*bounded(_FOLLOWED, await read_range(pool, sessions), *given)):
        found[row["answer_id"]].append(FollowedRow(**row))
    return found


# Whether the log holds a packet, and the gate's verdict on it.

_IS_KNOWN = "SELECT EXISTS (SELECT FROM apc_log.agent_packets WHERE packet_id = $1)"
_VERDICTS = """
SELECT verdict, refusal ->> 'code' AS code, refusal ->> 'path' AS path, refusal ->> 'message' AS message,
       refusal ->> 'remedy' AS remedy
FROM apc_log.agent_packets WHERE session_id = $1 AND packet_id = $2 AND sender_agent_id = $3 /*within agent_packets*/
"""
_REFUSALS = """
SELECT 'refused' AS verdict, code, NULL AS path, reason AS message, NULL AS remedy FROM apc_log.packet_conflicts
WHERE packet_id = $1 AND kind = 'refused' AND user_id = $2
"""


@reads(of_given)
async def is_logged(pool: asyncpg.Pool, packet_id: UUID) -> bool:
    """Return whether the log holds a packet of this id, in any session."""
    return bool(await pool.fetchval(_IS_KNOWN, packet_id))


@reads(of_given)
async def read_verdicts(
    pool: asyncpg.Pool, session_id: str, packet_id: UUID, sender: str, user: str
) -> Sequence[asyncpg.Record]:
    """Return `verdict`, `code`, `path`, `message` and own `remedy` of a packet; nothing while it is not judged.

    Args:
        sender: its agent_id.
        user: the broker user who published it. What others published under this packet_id is no answer to it.
    """
    bounds = await read_range(pool, [session_id])
    judged = await pool.fetch(*bounded(_VERDICTS, bounds, session_id, packet_id, sender))
    return [*judged, *await pool.fetch(_REFUSALS, packet_id, user)]

"""Open questions to people as the projection has them, and the verdicts that others wait for; requests are none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

_OPEN = """
SELECT session.session_id, session.run_id, session.document ->> 'task_id' AS task_id, question.key::uuid AS packet_id,
       question.value AS question, session.document ->> 'run_phase' AS run_phase,
       (session.document -> 'deadlines' ->> 'deadline')::timestamptz AS ends_at,
       packet.packet -> 'payload' -> 'question' AS asked,
       (packet.packet -> 'trace' ->> 'root_packet_id')::uuid AS root_packet_id
FROM apc_log.sessions AS session
CROSS JOIN LATERAL jsonb_each(coalesce(session.document -> 'work' -> 'questions', '{}')) AS question
LEFT JOIN apc_log.packets AS packet ON packet.session_id = session.session_id AND packet.packet_id = question.key::uuid
WHERE NOT session.is_terminal AND ($1::uuid IS NULL OR question.key = $1::text)
  AND ($2::text IS NULL OR session.session_id = $2) AND coalesce(question.value ->> 'returns', '') = ''
ORDER BY question.value ->> 'due_at', packet_id LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """An open question. `text` and `content` are None when the body is encrypted or was erased."""

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
    )


# Whether the log holds a packet, and the gate's verdict on it.

_IS_KNOWN = "SELECT EXISTS (SELECT FROM apc_log.agent_packets WHERE packet_id = $1)"
_VERDICTS = """
SELECT verdict, refusal ->> 'code' AS code, refusal ->> 'path' AS path, refusal ->> 'message' AS message,
       refusal ->> 'remedy' AS remedy
FROM apc_log.agent_packets WHERE session_id = $1 AND packet_id = $2 AND sender_agent_id = $3
UNION ALL
SELECT 'refused', code, NULL, reason, NULL FROM apc_log.packet_conflicts
WHERE packet_id = $2 AND kind = 'refused' AND user_id = $4
"""


async def is_logged(pool: asyncpg.Pool, packet_id: UUID) -> bool:
    """Return whether the log holds a packet of this id, in any session."""
    return bool(await pool.fetchval(_IS_KNOWN, packet_id))


async def read_verdicts(
    pool: asyncpg.Pool, session_id: str, packet_id: UUID, sender: str, user: str
) -> Sequence[asyncpg.Record]:
    """Return `verdict`, `code`, `path`, `message` and own `remedy` of a packet; nothing while it is not judged.

    Args:
        sender: its agent_id.
        user: the broker user who published it. What others published under this packet_id is no answer to it.
    """
    return await pool.fetch(_VERDICTS, session_id, packet_id, sender, user)

"""What a gate that takes a shard has to look at: open sessions, and refusals whose NACK may not have gone out."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import msgspec
import orjson
import structlog

from apc_contracts.judging.verdict import Refusal
from apc_contracts.limits import DocumentLimits
from apc_contracts.session import Denial, decode_document
from apc_contracts.wire.parsing import read_packet
from apc_log.sessions.bodies import open_bodies
from apc_log.subject_keys import KeyRing

_log = structlog.get_logger("apc_orchestrator")

# A verification that was begun is taken up again, in an ended session too; no input need come after it.
OPEN_SESSIONS = """
SELECT session_id, document, is_terminal, open_deliveries > 0 OR apc_log.is_verifying(document) AS has_work
FROM apc_log.sessions WHERE shard = $1 AND (is_open OR apc_log.is_verifying(document))
"""
# Held, then refused, and not expired yet: the barrier that refused them may have been the last thing the shard did.
DENIED = """
SELECT packet.body_stored, hop.metadata -> 'refusal' AS refusal
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_events AS hop
  ON hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
 AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.metadata ? 'refusal'
WHERE packet.shard = $1 AND packet.verdict = 'held' AND packet.expires_at > $2::timestamptz
  AND packet.judged_at > $2::timestamptz - interval '1 day'
ORDER BY packet.seq
"""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session that is not at its end, or that has deliveries on their way."""

    session_id: str
    is_terminal: bool
    has_work: bool
    """Deliveries on their way, or verifications that were begun."""
    next_deadline: datetime | None


async def open_sessions(pool: asyncpg.Pool, shard: int) -> list[OpenSession]:
    """Return the open sessions of a shard, with the deadline that each waits for."""
    found = []
    for row in await pool.fetch(OPEN_SESSIONS, shard):
        try:
            document = decode_document(row["document"])
        except msgspec.ValidationError as error:
            # One document that cannot be read must not keep the shard from all others.
            _log.error("session_unreadable", session_id=row["session_id"], reason=str(error))
            continue
        is_waiting = document.paused_at is None and document.deadlines
        due = min(document.deadlines.values()) if is_waiting else None
        found.append(OpenSession(row["session_id"], row["is_terminal"], row["has_work"], due))
    return found


async def unanswered_denials(
    pool: asyncpg.Pool, shard: int, now: datetime, limits: DocumentLimits, ring: KeyRing | None = None
) -> list[Denial]:
    """Return unexpired packets of the shard that were held and then refused, and not erased since."""
    async with pool.acquire() as connection:
        rows = await connection.fetch(DENIED, shard, now)
        bodies = await open_bodies(connection, ring, (row["body_stored"] for row in rows))
    readable = [(bodies.received(row["body_stored"]), orjson.loads(row["refusal"])) for row in rows]
    return [Denial(read_packet(body, limits), _refusal(why)) for body, why in readable if body is not None]


def _refusal(document: dict[str, Any]) -> Refusal:
    return Refusal(
        document["code"], document["rule"], document["path"], document["message"], document.get("retry_after_ms")
    )

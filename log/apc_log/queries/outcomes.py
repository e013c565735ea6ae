"""What came of a session: its DONE, who approved what, which states it entered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from apc_log.body_encryption import is_sealed
from apc_log.heads import bounded, of_given, of_places, read_range, reads
from apc_log.queries.packets import Position

_COLUMNS = "shard, seq, packet_id, packet_type, parent_packet_id, sender_agent_id, judged_at, body_stored AS body"
# Newest first: the DONE of the last round is the one that closed the session.
_DONE = f"""
SELECT {_COLUMNS} FROM apc_log.agent_packets
WHERE session_id = $1 AND packet_type = 'DECISION' AND verdict = 'accepted' /*within agent_packets*/
ORDER BY shard, seq DESC LIMIT 20
"""
_REVIEWS = f"""
SELECT {_COLUMNS} FROM apc_log.agent_packets
WHERE parent_packet_id = $2 AND session_id = $1 AND packet_type = 'DECISION' AND verdict = 'accepted'
  /*within agent_packets*/
ORDER BY seq LIMIT $3
"""
_ANSWERS = f"""
SELECT {_COLUMNS} FROM apc_log.agent_packets
WHERE session_id = $1 AND packet_type = 'SIGNAL' AND verdict = 'accepted'
  AND position('"answer"'::bytea IN body_stored) > 0 /*within agent_packets*/ ORDER BY seq LIMIT $2
"""
_AT = f"""
SELECT {_COLUMNS} FROM unnest($1::integer[], $2::bigint[]) AS place(shard, seq)
JOIN apc_log.agent_packets AS packet USING (shard, seq) ORDER BY shard, seq
"""
_ENTERED = """
SELECT to_state AS name, min(seq) AS seq FROM apc_log.coordination_events
WHERE session_id = $1 /*within coordination_events*/ GROUP BY to_state ORDER BY min(seq)
"""
_MOST = 50


@dataclass(frozen=True, slots=True)
class SaidRow:
    """A packet that tells of an outcome, with its payload; an encrypted one has an empty payload."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    parent_packet_id: UUID | None
    sender_agent_id: str
    judged_at: datetime
    body: bytes

    @property
    def payload(self) -> Mapping[str, Any]:
        """The payload as JSON."""
        if is_sealed(self.body):
            return {}
        try:
            payload = orjson.loads(self.body)["payload"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return {}
        return payload if isinstance(payload, dict) else {}


@reads(of_given)
async def find_done(pool: asyncpg.Pool, session_id: str, named: UUID | None) -> SaidRow | None:
    """Return the DECISION DONE of a session: the one that its document names, else the newest that is readable."""
    bounds = await read_range(pool, [session_id])
    rows = await _said(pool, *bounded(_DONE, bounds, session_id))
    for row in rows:
        if row.packet_id == named or (named is None and row.payload.get("commitment_level") == "DONE"):
            return row
    return None


@reads(of_given)
async def list_reviews(pool: asyncpg.Pool, session_id: str, done: UUID) -> list[SaidRow]:
    """Return the DECISIONs of reviewers on a DONE, oldest first."""
    bounds = await read_range(pool, [session_id])
    return await _said(pool, *bounded(_REVIEWS, bounds, session_id, done, _MOST))


@reads(of_given)
async def list_answers(pool: asyncpg.Pool, session_id: str) -> list[SaidRow]:
    """Return the answers of people, and of the gate for them, in a session; of readable bodies, oldest first."""
    bounds = await read_range(pool, [session_id])
    rows = await _said(pool, *bounded(_ANSWERS, bounds, session_id, _MOST))
    return [row for row in rows if is_of_people(row.payload)]


@reads(of_places)
async def said_rows(pool: asyncpg.Pool, places: Sequence[Position]) -> list[SaidRow]:
    """Return the packets at these positions, in the order of the log."""
    return await _said(pool, _AT, [one.shard for one in places], [one.seq for one in places])


def is_of_people(payload: Mapping[str, Any]) -> bool:
    """Return whether a payload answers a question to people; a result answers a request to an agent."""
    answer = payload.get("answer")
    return isinstance(answer, dict) and answer.get("result") is None and answer.get("outcome") != "failed"


@reads(of_given)
async def states_entered(pool: asyncpg.Pool, session_id: str) -> Sequence[asyncpg.Record]:
    """Return `name` of each state that a session entered after its first, and `seq` of the first time."""
    bounds = await read_range(pool, [session_id])
    return await pool.fetch(*bounded(_ENTERED, bounds, session_id))


async def _said(pool: asyncpg.Pool, statement: str, *values: object) -> list[SaidRow]:
    return [SaidRow(**row) for row in await pool.fetch(statement, *values)]

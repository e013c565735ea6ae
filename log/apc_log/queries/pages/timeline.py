"""A session's packets as columns for drawing; scores and transfers of a session."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

_TIMELINE = """
SELECT seq, (extract(epoch FROM judged_at) * 1000)::bigint AS ms, sender_agent_id, packet_type, verdict,
       coalesce(refusal_code, ''), generation, packet_id, cause_packet_id, parent_packet_id
FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2 AND seq > $3 ORDER BY seq LIMIT $4
"""
_SCORES = """
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.sender_agent_id, packet.sender_swarm_id, packet.round,
       packet.generation, packet.verdict,
       (content.packet #>> '{payload,metric_set,outcome}')::double precision AS outcome,
       (content.packet #>> '{payload,metric_set,drift_risk}')::double precision AS drift_risk
FROM apc_log.agent_packets AS packet LEFT JOIN apc_log.packets AS content USING (shard, seq)
WHERE packet.session_id = $1 AND packet.packet_type = 'EVAL' ORDER BY packet.seq LIMIT $2
"""
_TRANSFERS = """
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.round, packet.generation, block.protocol_id,
       block.from_swarm, block.to_swarm,
       CASE WHEN packet.verdict = 'held' AND ruling.to_state = 'ROUTED' THEN 'accepted'
            WHEN packet.verdict = 'held' AND ruling.to_state IS NOT NULL THEN 'refused'
            ELSE packet.verdict END AS verdict,
       coalesce(packet.refusal_code, ruling.code) AS refusal_code
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_lineage AS block USING (session_id, packet_id)
LEFT JOIN LATERAL (
    SELECT hop.to_state, hop.metadata -> 'refusal' ->> 'code' AS code FROM apc_log.packet_events AS hop
    WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
      AND hop.from_state = 'SCHEMA_VALIDATED' ORDER BY hop.seq LIMIT 1
) AS ruling ON packet.verdict = 'held'
WHERE packet.session_id = $1 AND packet.packet_type = 'TRANSFER' ORDER BY packet.seq LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """An EVAL; outcome and drift are None where the body is encrypted."""

    seq: int
    judged_at: datetime
    packet_id: UUID
    sender_agent_id: str
    sender_swarm_id: str
    round: int
    generation: int
    verdict: str
    outcome: float | None
    drift_risk: float | None


@dataclass(frozen=True, slots=True)
class SessionTransferRow:
    """A TRANSFER of a session with its final verdict; `held` while it has none."""

    seq: int
    judged_at: datetime
    packet_id: UUID
    round: int
    generation: int
    protocol_id: str
    from_swarm: str | None
    to_swarm: str | None
    verdict: str
    refusal_code: str | None


async def timeline_rows(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, limit: int
) -> Sequence[asyncpg.Record]:
    """Return packets of a session in the order of the log, as records of ten plain values.

    seq, milliseconds since 1970, sender, type, verdict, refusal code or '', generation, packet id, cause, parent.
    """
    return await pool.fetch(_TIMELINE, session_id, shard, after, limit)


async def session_scores(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[ScoreRow]:
    """Return the EVALs of a session, oldest first."""
    return [ScoreRow(**row) for row in await pool.fetch(_SCORES, session_id, limit)]


async def session_transfers(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[SessionTransferRow]:
    """Return the TRANSFERs of a session, oldest first."""
    return [SessionTransferRow(**row) for row in await pool.fetch(_TRANSFERS, session_id, limit)]

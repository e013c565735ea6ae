"""A session's packets as columns for drawing; scores and transfers of a session."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_log.queries.pages.rulings import CODE, RULING, VERDICT

# Ids are compared and not shown: 64 bits of each are read in a third of the time.
_TIMELINE = """
SELECT seq, (extract(epoch FROM judged_at) * 1000)::bigint AS ms, sender_agent_id, packet_type, verdict,
       coalesce(refusal_code, ''), generation, uuid_hash_extended(packet_id, 0),
       uuid_hash_extended(cause_packet_id, 0), uuid_hash_extended(parent_packet_id, 0)
FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2 AND seq > $3 ORDER BY seq LIMIT $4
"""
_RULINGS = """
SELECT uuid_hash_extended(packet_id, 0) AS packet, CASE WHEN to_state = 'ROUTED' THEN 'accepted' ELSE 'refused' END,
       coalesce(metadata -> 'refusal' ->> 'code', '')
FROM apc_log.packet_events
WHERE session_id = $1 AND shard = $2 AND seq > $3 AND recipient = '' AND from_state = 'SCHEMA_VALIDATED'
  AND (to_state = 'ROUTED' OR metadata ? 'refusal')
ORDER BY seq DESC
"""
_SCORES = """
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.sender_agent_id, packet.sender_swarm_id, packet.round,
       packet.generation, packet.verdict,
       (content.packet #>> '{payload,metric_set,outcome}')::double precision AS outcome,
       (content.packet #>> '{payload,metric_set,drift_risk}')::double precision AS drift_risk
FROM apc_log.agent_packets AS packet LEFT JOIN apc_log.packets AS content USING (shard, seq)
WHERE packet.session_id = $1 AND packet.packet_type = 'EVAL' ORDER BY packet.seq LIMIT $2
"""
_TRANSFERS = f"""
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.round, packet.generation, block.protocol_id,
       block.from_swarm, block.to_swarm, {VERDICT} AS verdict, {CODE} AS refusal_code
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_lineage AS block USING (session_id, packet_id) {RULING}
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

    seq, milliseconds since 1970, sender, type, verdict on arrival, refusal code or '', generation; then 64 bits of the
    ids of the packet, its cause and its parent.
    """
    return await pool.fetch(_TIMELINE, session_id, shard, after, limit)


async def timeline_rulings(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int
) -> dict[int, tuple[str, str]]:
    """Return the final verdict and code of held packets of a session: 64 bits of the packet's id -> both."""
    rows = await pool.fetch(_RULINGS, session_id, shard, after)
    return {packet: (verdict, code) for packet, verdict, code in rows}


async def session_scores(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[ScoreRow]:
    """Return the EVALs of a session, oldest first."""
    return [ScoreRow(**row) for row in await pool.fetch(_SCORES, session_id, limit)]


async def session_transfers(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[SessionTransferRow]:
    """Return the TRANSFERs of a session, oldest first."""
    return [SessionTransferRow(**row) for row in await pool.fetch(_TRANSFERS, session_id, limit)]

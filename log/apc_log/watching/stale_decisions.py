"""Decisions that rest on a retracted packet, for the readers of a result."""

from uuid import UUID

import asyncpg

from apc_contracts.explanation import StaleDecision

_STALE = """
SELECT packet.packet_id, packet.sender_agent_id AS sender, ground.packet_id AS ground_id,
       ground.packet_type AS ground_type, ground.sender_agent_id AS ground_sender,
       stale.retraction_packet_id AS retraction_id
FROM apc_log.packet_stale AS stale
JOIN apc_log.packet_ids AS decided
  ON decided.session_id = stale.session_id AND decided.packet_id = stale.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = decided.shard AND packet.seq = decided.seq
JOIN apc_log.packet_ids AS rested
  ON rested.session_id = stale.session_id AND rested.packet_id = stale.because_packet_id
JOIN apc_log.agent_packets AS ground ON ground.shard = rested.shard AND ground.seq = rested.seq
WHERE stale.session_id = $1 AND packet.packet_type = 'DECISION' AND ($2::uuid IS NULL OR packet.packet_id = $2)
ORDER BY packet.seq DESC LIMIT $3
"""
_MOST = 5


async def list_stale_decisions(
    pool: asyncpg.Pool, session_id: str, *, packet_id: UUID | None = None, limit: int = _MOST
) -> tuple[StaleDecision, ...]:
    """Return the DECISIONs of a session, or the one with this id, that are stale; newest first."""
    return tuple(StaleDecision(**row) for row in await pool.fetch(_STALE, session_id, packet_id, limit))

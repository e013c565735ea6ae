"""What was refused in one session, counted by code, sender and type: the reason why nothing followed."""

import asyncpg

from apc_contracts.explanation import RefusalCount

# On arrival, or by the hop that ended the wait of a held packet.
_COUNTS = """
WITH refused AS (
    SELECT packet.seq, packet.refusal_code AS code, packet.sender_agent_id, packet.packet_type
    FROM apc_log.agent_packets AS packet WHERE packet.session_id = $1 AND packet.verdict = 'refused'
    UNION ALL
    SELECT hop.seq, hop.metadata -> 'refusal' ->> 'code', packet.sender_agent_id, packet.packet_type
    FROM apc_log.packet_events AS hop
    JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
    JOIN apc_log.agent_packets AS packet
      ON packet.shard = named.shard AND packet.seq = named.seq AND packet.verdict = 'held'
    WHERE hop.session_id = $1 AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED'
      AND hop.metadata ? 'refusal'
)
SELECT code, sender_agent_id AS sender, packet_type, count(*) AS packets
FROM refused GROUP BY code, sender_agent_id, packet_type ORDER BY max(seq) DESC LIMIT $2
"""
_MOST = 50


async def count_refusals(pool: asyncpg.Pool, session_id: str) -> tuple[RefusalCount, ...]:
    """Return how many packets of a session were refused, by code, sender and type: at most 50, the latest first."""
    return tuple(RefusalCount(**row) for row in await pool.fetch(_COUNTS, session_id, _MOST))

"""Agents as the log knows them: registered, last heard, and what is on its way to them."""

from collections.abc import Sequence

import asyncpg

from apc_contracts.vocabulary import PRESENCE_SESSION

_LISTED = """
SELECT agent_id, role, swarm_id AS swarm, rights, handles, broker_user, is_revoked,
ARRAY(SELECT json_object_keys(public_keys::json) ORDER BY 1) AS keys, (
    SELECT max(recorded_at) FROM apc_log.agent_packets
    WHERE session_id = $1 AND sender_agent_id = agents.agent_id
) AS last_seen
FROM apc_log.agents ORDER BY agent_id
"""
# A delivery is open from the packet's routing until a hop of its last attempt says that it ended.
_OPEN = """
WITH running AS (
    SELECT session_id FROM apc_log.sessions WHERE open_deliveries > 0
), own AS (
    SELECT session_id, packet_id, recipient, max(attempt) AS attempt,
           max(attempt) FILTER (WHERE metadata ? 'ended') AS ended_attempt
    FROM apc_log.packet_events WHERE session_id IN (SELECT session_id FROM running) AND recipient <> ''
    GROUP BY session_id, packet_id, recipient
), shared AS (
    SELECT DISTINCT ON (session_id, packet_id) session_id, packet_id, to_state
    FROM apc_log.packet_events
    WHERE session_id IN (SELECT session_id FROM running) AND recipient = '' AND to_state <> ''
    ORDER BY session_id, packet_id, seq DESC
)
SELECT recipient.name AS agent_id, count(*) AS deliveries
FROM apc_log.agent_packets AS packet
JOIN shared USING (session_id, packet_id)
CROSS JOIN LATERAL unnest(packet.recipients) AS recipient(name)
LEFT JOIN own ON own.session_id = packet.session_id AND own.packet_id = packet.packet_id
             AND own.recipient = recipient.name
WHERE packet.verdict <> 'refused' AND packet.channel <> 'INTRA_AGENT' AND shared.to_state = 'ROUTED'
  AND coalesce(own.ended_attempt, 0) < coalesce(own.attempt, 1)
GROUP BY recipient.name
"""


async def list_registered(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return every agent that was ever registered, with the ids of its keys and when its last heartbeat was logged."""
    return await pool.fetch(_LISTED, PRESENCE_SESSION)


async def count_open_deliveries(pool: asyncpg.Pool) -> dict[str, int]:
    """Return how many deliveries are on their way to each agent; agents without one are left out."""
    return {row["agent_id"]: row["deliveries"] for row in await pool.fetch(_OPEN)}

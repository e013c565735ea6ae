"""Who is registered, alive, last seen, and what waits for whom."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from apc_bus.errors import QueueMissing
from apc_bus.port import Bus, QueueDepth
from apc_bus.settings import BusSettings
from apc_bus.topology import agent_queue
from apc_console.connections.broker import open_bus
from apc_console.connections.database import open_log
from apc_contracts.vocabulary import PRESENCE_SESSION

ALIVE_WITHIN = timedelta(seconds=90)
"""Three missed heartbeats (docs/specification/agents.md section 1: one after 30 s of silence)."""
LISTED = """
SELECT agent_id, role, swarm_id AS swarm, rights, handles, broker_user, is_revoked,
ARRAY(SELECT json_object_keys(public_keys::json) ORDER BY 1) AS keys, (
    SELECT max(recorded_at) FROM apc_log.agent_packets
    WHERE session_id = $1 AND sender_agent_id = agents.agent_id
) AS last_seen
FROM apc_log.agents ORDER BY agent_id
"""
# A delivery is open from the packet's routing until a hop of its last attempt says that it ended.
OPEN = """
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


async def agent_rows() -> list[dict[str, Any]]:
    """One row an agent: `open` deliveries by the log, `waiting` messages by the broker, None without one."""
    settings = BusSettings()
    async with open_log() as pool:
        rows = await listed(pool, datetime.now(UTC))
    for row in rows:
        row["waiting"] = None
    if settings.amqp_nodes:
        async with open_bus(settings) as bus:
            for row in rows:
                row["waiting"] = await _waiting(bus, row["agent_id"])
    return rows


async def listed(pool: asyncpg.Pool, now: datetime) -> list[dict[str, Any]]:
    """What the log knows of every agent that was ever registered."""
    rows = [dict(row) for row in await pool.fetch(LISTED, PRESENCE_SESSION)]
    opened = {row["agent_id"]: row["deliveries"] for row in await pool.fetch(OPEN)}
    for row in rows:
        row["is_alive"] = row["last_seen"] is not None and now - row["last_seen"] < ALIVE_WITHIN
        row["open"] = opened.get(row["agent_id"], 0)
    return rows


def inbox_depths(depths: Mapping[str, QueueDepth], agent_id: str) -> list[QueueDepth]:
    """The depths of an agent's queues, as far as they are there."""
    queues = (agent_queue(agent_id, urgent) for urgent in (True, False))
    return [depths[queue] for queue in queues if queue in depths]


async def _waiting(bus: Bus, agent_id: str) -> int | None:
    with suppress(QueueMissing):
        return sum([(await bus.depth(agent_queue(agent_id, urgent))).messages for urgent in (True, False)])
    return None

"""What happened lately in each shard: packets, refusals, dead letters, and how late the log was written."""

from dataclasses import dataclass

import asyncpg

_RECENT = """
SELECT shards.shard, packets.packets, packets.refused, packets.delay, hops.dead
FROM apc_log.shards
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE recorded_at > clock_timestamp() - interval '10 minutes') AS packets,
           count(*) FILTER (WHERE recorded_at > clock_timestamp() - interval '10 minutes' AND verdict = 'refused')
               AS refused,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY extract(epoch FROM recorded_at - judged_at)::double precision)
               FILTER (WHERE recorded_at > clock_timestamp() - interval '5 minutes') AS delay
    FROM (
        SELECT recorded_at, judged_at, verdict,
               packet_type = 'HEARTBEAT' AND refusal_code = 'EXPIRED' AS is_late_heartbeat
        FROM apc_log.agent_packets WHERE shard = shards.shard ORDER BY seq DESC LIMIT 1000
    ) AS newest
    WHERE is_late_heartbeat IS NOT true
) AS packets
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (
        WHERE to_state = 'DEAD_LETTERED' AND recorded_at > clock_timestamp() - interval '15 minutes'
    ) AS dead
    FROM (
        SELECT recorded_at, to_state FROM apc_log.packet_events WHERE shard = shards.shard ORDER BY seq DESC LIMIT 1000
    ) AS newest
) AS hops
ORDER BY shards.shard
"""


@dataclass(frozen=True, slots=True)
class RecentWork:
    """The newest entries of a shard, at most 1,000 packets and 1,000 hops."""

    shard: int
    packets: int
    """Of the last 10 minutes, without HEARTBEATs that expired: an outage of the gate leaves many of them."""
    refused: int
    """Of these."""
    delay: float | None
    """Seconds from verdict to commit of 95 of 100 packets, of the last 5 minutes; below 0 when the clocks differ."""
    dead: int
    """Deliveries that died in the last 15 minutes."""


async def recent_work(pool: asyncpg.Pool) -> list[RecentWork]:
    """Return what happened lately, by shard."""
    return [RecentWork(**row) for row in await pool.fetch(_RECENT)]

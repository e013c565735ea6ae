"""What tells whether the log is in order: the age of its end, checkpoints outside, deliveries that died."""

from collections.abc import Sequence

import asyncpg

_EXPORTS = """
SELECT made.shard, best.target, best.tree_size,
       (SELECT extract(epoch FROM clock_timestamp() - recorded_at)::double precision FROM apc_log.log_checkpoints AS c
        WHERE c.shard = made.shard AND c.tree_size <= best.tree_size ORDER BY c.tree_size DESC LIMIT 1) AS exported_age,
       (SELECT extract(epoch FROM clock_timestamp() - recorded_at)::double precision FROM apc_log.log_checkpoints AS c
        WHERE c.shard = made.shard AND c.tree_size > coalesce(best.tree_size, 0) ORDER BY c.tree_size LIMIT 1)
        AS waiting_age
FROM apc_log.log_edges AS made
LEFT JOIN LATERAL (
    SELECT target, tree_size FROM apc_log.checkpoint_exports AS e
    WHERE e.shard = made.shard AND e.tree_size > 0 ORDER BY e.tree_size DESC LIMIT 1
) AS best ON true
ORDER BY made.shard
"""
# Where a delivery stands is where its last hop has led. A reason is a word, or one and what follows a colon.
_BY_REASON = """
SELECT split_part(coalesce(dead.metadata ->> 'error', 'unknown'), ':', 1) AS reason,
       count(*) AS deliveries, min(dead.recorded_at) AS oldest
FROM apc_log.packet_events AS dead
WHERE dead.to_state = 'DEAD_LETTERED' AND NOT EXISTS (
    SELECT FROM apc_log.packet_events AS later
    WHERE later.session_id = dead.session_id AND later.packet_id = dead.packet_id
      AND later.recipient = dead.recipient AND later.seq > dead.seq AND later.to_state <> ''
)
GROUP BY 1 ORDER BY 2 DESC, 1
"""
_AGE = """
SELECT extract(epoch FROM clock_timestamp() - max(recorded_at))::double precision FROM (
    (SELECT recorded_at FROM apc_log.packet_events WHERE shard = $1 ORDER BY seq DESC LIMIT 1)
    UNION ALL (SELECT recorded_at FROM apc_log.agent_packets WHERE shard = $1 ORDER BY seq DESC LIMIT 1)
    UNION ALL (SELECT recorded_at FROM apc_log.packet_conflicts WHERE shard = $1 ORDER BY seq DESC LIMIT 1)
) AS last
"""

_SET_ASIDE = """
SELECT count(*) FROM apc_log.packet_conflicts
WHERE kind = 'unjudgeable' AND recorded_at > now() - make_interval(days => $1)
"""


async def read_exports(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return of each shard the last exported checkpoint, its age, and the age of the first that waits, in seconds."""
    return await pool.fetch(_EXPORTS)


async def count_dead_by_reason(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return how many deliveries are dead for each reason, most first, with the time of the oldest."""
    return await pool.fetch(_BY_REASON)


async def count_set_aside(pool: asyncpg.Pool, days: int) -> int:
    """Return how many inputs the gates have set aside within so many days, because they ended a gate each time."""
    return int(await pool.fetchval(_SET_ASIDE, days))


async def read_age(pool: asyncpg.Pool, shard: int) -> float | None:
    """Return how many seconds ago the last entry of a shard was written; None when there is none."""
    age: float | None = await pool.fetchval(_AGE, shard)
    return age

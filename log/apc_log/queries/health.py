"""What tells whether the log is in order: its ends and exports, their age, recent work, dead deliveries, counts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg

from apc_log.heads import Given, Reach, reads, released_until, since

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
      AND later.to_state <> ''
      AND (later.recipient = dead.recipient AND later.seq > dead.seq OR later.to_state = 'RETRACTED')
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


_UNSTORED = """
SELECT count(*) AS count, max(recorded_at) AS newest FROM apc_log.packet_conflicts
WHERE kind = 'unstorable' AND recorded_at > now() - make_interval(days => $1)
"""
_AHEAD = """
SELECT shards.shard, extract(epoch FROM newest.judged_at - clock_timestamp())::double precision AS seconds
FROM apc_log.shards
CROSS JOIN LATERAL (
    SELECT judged_at FROM apc_log.agent_packets WHERE shard = shards.shard ORDER BY seq DESC LIMIT 1
) AS newest
ORDER BY shards.shard
"""


async def read_seconds_ahead(pool: asyncpg.Pool) -> dict[int, float]:
    """Return by how much the newest verdict of each shard is ahead of the database's clock; below 0 when it is not."""
    return {row["shard"]: row["seconds"] for row in await pool.fetch(_AHEAD)}


async def read_exports(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return of each shard the last exported checkpoint, its age, and the age of the first that waits, in seconds."""
    return await pool.fetch(_EXPORTS)


async def count_dead_by_reason(pool: asyncpg.Pool) -> Sequence[asyncpg.Record]:
    """Return how many deliveries are dead for each reason, most first, with the time of the oldest.

    Of those in the database: sessions that are in the archive alone are not counted. A caller says so by
    `released_until`.
    """
    return await pool.fetch(_BY_REASON)


async def days_here(pool: asyncpg.Pool, days: int) -> int:
    """Return for how many whole days, at most so many, the database has everything that came."""
    until = await released_until(pool)
    return days if until is None else max(min(days, (datetime.now(UTC) - until).days), 0)


def _since_days(given: Given) -> Reach:
    return Reach(since=datetime.now(UTC) - timedelta(days=given["days"]))


@reads(_since_days)
async def count_set_aside(pool: asyncpg.Pool, days: int) -> int:
    """Return how many inputs were set aside within so many days, because each ended the orchestrator every time."""
    return int(await pool.fetchval(_SET_ASIDE, days))


@reads(_since_days)
async def count_unstored(pool: asyncpg.Pool, days: int) -> tuple[int, datetime | None]:
    """Return how many entries the writer could only store as conflicts within so many days, and when the newest."""
    row = await pool.fetchrow(_UNSTORED, days)
    return (0, None) if row is None else (row["count"], row["newest"])


async def read_age(pool: asyncpg.Pool, shard: int) -> float | None:
    """Return how many seconds ago the last entry of a shard was written; None when there is none."""
    age: float | None = await pool.fetchval(_AGE, shard)
    return age


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
    SELECT count(*) FILTER (WHERE recorded_at > clock_timestamp() - interval '15 minutes') AS dead
    FROM (
        -- By their own index: among busy hops the newest thousand of all are those of some seconds.
        SELECT recorded_at FROM apc_log.packet_events
        WHERE shard = shards.shard AND to_state = 'DEAD_LETTERED' ORDER BY seq DESC LIMIT 1000
    ) AS newest
) AS hops
ORDER BY shards.shard
"""


@dataclass(frozen=True, slots=True)
class RecentWork:
    """The newest entries of a shard, at most 1,000 packets and 1,000 dead letters."""

    shard: int
    packets: int
    """Of the last 10 minutes, without HEARTBEATs that expired: an outage of the orchestrator leaves many of them."""
    refused: int
    """Of these."""
    delay: float | None
    """Seconds from verdict to commit of 95 of 100 packets, of the last 5 minutes; below 0 when the clocks differ."""
    dead: int
    """Deliveries that died in the last 15 minutes."""


async def recent_work(pool: asyncpg.Pool) -> list[RecentWork]:
    """Return what happened lately, by shard."""
    return [RecentWork(**row) for row in await pool.fetch(_RECENT)]


_SHARDS = """
SELECT shards.shard, shards.epoch, shards.next_seq, head.tree_size, head.root_hash, head.note, head.recorded_at,
       export.tree_size AS exported, export.exported_at
FROM apc_log.shards
LEFT JOIN LATERAL (
    SELECT tree_size, root_hash, note, recorded_at FROM apc_log.log_checkpoints
    WHERE shard = shards.shard ORDER BY tree_size DESC LIMIT 1
) AS head ON true
LEFT JOIN LATERAL (
    SELECT tree_size, exported_at FROM apc_log.checkpoint_exports
    WHERE shard = shards.shard ORDER BY tree_size DESC LIMIT 1
) AS export ON true
ORDER BY shards.shard
"""


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """Where the log of a shard ends, and what is signed and exported of it."""

    shard: int
    epoch: int
    next_seq: int
    tree_size: int | None
    root_hash: bytes | None
    note: str | None
    recorded_at: datetime | None
    exported: int | None
    exported_at: datetime | None


async def list_shard_ends(pool: asyncpg.Pool) -> list[ShardEnd]:
    """Return the end of every shard's log, by shard."""
    return [ShardEnd(**row) for row in await pool.fetch(_SHARDS)]


_LOGGED = """
SELECT packet_id::text FROM apc_log.agent_packets WHERE packet_id = ANY($1)
UNION SELECT packet_id::text FROM apc_log.packet_conflicts WHERE packet_id = ANY($1)
"""
_VERDICTS = """
SELECT coalesce(refusal_code, verdict) AS name, count(*) AS count FROM apc_log.agent_packets
WHERE recorded_at >= $1 GROUP BY 1
"""
_CONFLICTS = "SELECT kind AS name, count(*) AS count FROM apc_log.packet_conflicts WHERE recorded_at >= $1 GROUP BY 1"
_DELIVERIES = """
SELECT state AS name, count(*) AS count FROM apc_log.packet_recipient_state
WHERE recipient <> '' AND recorded_at >= $1 GROUP BY 1
"""
_RETRIED = """
SELECT count(DISTINCT (packet_id, recipient)) FROM apc_log.packet_events WHERE attempt > 1 AND recorded_at >= $1
"""


@reads(lambda given: Reach(packets=given["packet_ids"]))
async def find_logged(pool: asyncpg.Pool, packet_ids: Sequence[UUID]) -> set[str]:
    """Return which of these packets the log holds, those set aside too."""
    return {row["packet_id"] for row in await pool.fetch(_LOGGED, packet_ids)}


@reads(since)
async def count_verdicts(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many packets got each verdict; refused ones by the code of their refusal."""
    return await _counts(pool, _VERDICTS, since)


@reads(since)
async def count_conflicts(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many entries were set aside as conflicts, by kind."""
    return await _counts(pool, _CONFLICTS, since)


@reads(since)
async def count_deliveries(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many deliveries are in each state."""
    return await _counts(pool, _DELIVERIES, since)


@reads(since)
async def count_retried(pool: asyncpg.Pool, since: datetime) -> int:
    """Return how many deliveries had more than one attempt."""
    retried: int = await pool.fetchval(_RETRIED, since)
    return retried


async def _counts(pool: asyncpg.Pool, query: str, since: datetime) -> dict[str, int]:
    return {row["name"]: row["count"] for row in await pool.fetch(query, since)}


# Segments: room ahead of the log, what is not archived, and how the database grows.

_SEGMENTS_AHEAD = """
SELECT shards.shard, count(*) FILTER (WHERE first_seq > next_seq) AS ahead FROM apc_log.shards
LEFT JOIN apc_log.segments USING (shard) WHERE next_seq > $1 AND moved_to IS NULL
GROUP BY shards.shard ORDER BY shards.shard
"""
_UNARCHIVED = """
SELECT count(*) AS segments, min(full_since) AS since FROM (
    SELECT (SELECT recorded_at FROM apc_log.log_checkpoints AS note
            WHERE note.shard = segment.shard AND tree_size >= last_seq ORDER BY tree_size LIMIT 1) AS full_since
    FROM apc_log.segments AS segment JOIN apc_log.shards USING (shard) WHERE state = 'sealed' AND moved_to IS NULL
) AS sealed
"""
_GROWTH = """
SELECT pg_database_size(current_database()) AS size,
       sum(newest.tree_size - coalesce(before.tree_size, 0))::bigint AS entries,
       sum(released.entries)::bigint AS released,
       (SELECT sum(pg_total_relation_size(oid)) FROM pg_class
        WHERE relnamespace = 'apc_log'::regnamespace AND relkind = 'r'
        AND (max(gone.last_seq) IS NULL OR relispartition AND relname !~ '_thin$'))
       / greatest(sum(newest.tree_size - coalesce(gone.last_seq, 0)), 1000) AS bytes_an_entry
FROM apc_log.shards
CROSS JOIN LATERAL (SELECT tree_size FROM apc_log.log_checkpoints AS note WHERE note.shard = shards.shard
                    ORDER BY tree_size DESC LIMIT 1) AS newest
LEFT JOIN LATERAL (SELECT tree_size FROM apc_log.log_checkpoints AS note WHERE note.shard = shards.shard
                   AND recorded_at < now() - interval '1 day' ORDER BY tree_size DESC LIMIT 1) AS before ON true
LEFT JOIN LATERAL (SELECT max(last_seq) AS last_seq FROM apc_log.segments
                   WHERE segments.shard = shards.shard AND state IN ('released', 'expired')) AS gone ON true
LEFT JOIN LATERAL (SELECT sum((detail ->> 'last_seq')::bigint - (detail ->> 'first_seq')::bigint + 1) AS entries
                   FROM apc_log.log_events AS event WHERE event.shard = shards.shard AND kind = 'release'
                   AND recorded_at > now() - interval '1 day') AS released ON true
"""


async def read_segments_ahead(pool: asyncpg.Pool, entries: int) -> list[asyncpg.Record]:
    """Return `shard` and `ahead`, the segments that are empty yet, of each shard with more than so many entries."""
    return await pool.fetch(_SEGMENTS_AHEAD, entries)


async def read_unarchived(pool: asyncpg.Pool) -> asyncpg.Record:
    """Return how many `segments` are full and not recorded, and `since` when the oldest is full; None without any."""
    row = await pool.fetchrow(_UNARCHIVED)
    assert row is not None
    return row


def days_left(growth: asyncpg.Record, capacity: int | None) -> float:
    """Return in how many days the database has so many bytes, by what came in the last day less what was let go of.

    Infinite without a capacity, and where it does not grow.
    """
    a_day = int(((growth["entries"] or 0) - (growth["released"] or 0)) * (growth["bytes_an_entry"] or 0))
    if capacity is None or a_day <= 0:
        return math.inf
    return float(max(capacity - growth["size"], 0) / a_day)


async def read_growth(pool: asyncpg.Pool) -> asyncpg.Record:
    """Return the database's `size` in bytes, the `entries` of the last day, those `released` in it, and the
    `bytes_an_entry` takes here."""
    row = await pool.fetchrow(_GROWTH)
    assert row is not None
    return row

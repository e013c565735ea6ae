"""How busy the log and its agents are: packets by time, what agents did by day, how long it took."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from uuid import UUID

import asyncpg

from apc_log.heads import Reach, Sought, reads, released_in, released_until, since, sought, unavailable

# A writer's commits are in the order of time, so that the first entry since a time is found by halves in the primary
# key: no index by time is needed.
_RECENT = """
WITH RECURSIVE place AS (
    SELECT shard, 0::bigint AS low, next_seq AS high FROM apc_log.shards
    UNION ALL
    SELECT place.shard, CASE WHEN probe.at < $1 THEN middle.seq ELSE low END,
           CASE WHEN probe.at < $1 THEN high ELSE middle.seq END
    FROM place
    CROSS JOIN LATERAL (SELECT (low + high) / 2 AS seq) AS middle
    CROSS JOIN LATERAL (SELECT (
        SELECT recorded_at FROM apc_log.agent_packets
        WHERE shard = place.shard AND seq >= middle.seq ORDER BY seq LIMIT 1
    ) AS at) AS probe
    WHERE high - low > 1
)
SELECT date_bin($2, recent.recorded_at, $1) AS at, recent.refusal_code, count(*) AS packets,
       count(*) FILTER (WHERE recent.verdict = 'refused') AS refused
FROM place CROSS JOIN LATERAL (
    SELECT recorded_at, verdict, refusal_code FROM apc_log.agent_packets
    WHERE shard = place.shard AND seq >= place.low AND recorded_at >= $1 AND packet_type <> 'HEARTBEAT'
    ORDER BY seq LIMIT $3
) AS recent
WHERE place.high - place.low <= 1
GROUP BY 1, 2 ORDER BY 1, 2
"""
_MINUTES = """
SELECT date_bin($3, minute, $1) AS at, sum(packets)::bigint AS packets, sum(refused)::bigint AS refused
FROM apc_log.packet_minutes WHERE minute >= $1 AND minute < $2 GROUP BY 1 ORDER BY 1
"""
_FIRST = "SELECT min(minute) FROM apc_log.packet_minutes"
_BEHIND = """
SELECT coalesce(sum(shards.next_seq - 1 - coalesce(followed.seq, 0)), 0)::bigint FROM apc_log.shards
LEFT JOIN apc_log.followed ON followed.shard = shards.shard AND followed.projection = 'agent_days'
"""
_DAYS = """
SELECT agent_id, day, packets, refused, handled, failed, tokens, cost FROM apc_log.agent_days
WHERE ($1::text IS NULL OR agent_id = $1) AND day BETWEEN $2 AND $3
ORDER BY day DESC, cost DESC, tokens DESC, packets DESC, agent_id LIMIT $4
"""
_STEPS = """
SELECT step, sum(deliveries)::bigint AS deliveries FROM apc_log.agent_latencies
WHERE agent_id = $1 AND day BETWEEN $2 AND $3 GROUP BY step ORDER BY step
"""
# `agent=` names sender and recipients (migration 0114). What is newest is found in either order of looking.
_LATEST = """
SELECT packet.shard, packet.seq, packet.packet_id, packet.session_id, packet.run_id, packet.packet_type,
       packet.sender_agent_id AS sender, packet.recipients, packet.verdict, packet.refusal_code, packet.judged_at AS at
FROM (
    SELECT shard, seq FROM apc_log.packet_search WHERE words @@ $1::tsquery ORDER BY at DESC, shard, seq LIMIT $2
) AS newest
JOIN apc_log.agent_packets AS packet USING (shard, seq)
ORDER BY packet.judged_at DESC, packet.shard, packet.seq
"""
MOST_RECENT = 100_000
"""Packets of a shard that are counted one by one."""


@dataclass(frozen=True, slots=True)
class PacketCount:
    """Packets of a span of time; HEARTBEATs count nowhere."""

    at: datetime
    packets: int
    refused: int
    refusal_code: str | None = None
    """Of these alone; None: accepted or held, or no code is known."""


@reads(since)
async def count_recent(pool: asyncpg.Pool, since: datetime, step: timedelta) -> list[PacketCount]:
    """Return packets by spans of `step` from a time on, by the code of their refusal: read from the log itself."""
    return [PacketCount(**row) for row in await pool.fetch(_RECENT, since, step, MOST_RECENT)]


async def count_minutes(pool: asyncpg.Pool, since: datetime, until: datetime, step: timedelta) -> list[PacketCount]:
    """Return packets by spans of `step`, a number of minutes, between two times; empty spans are left out."""
    return [PacketCount(**row) for row in await pool.fetch(_MINUTES, since, until, step)]


async def first_minute(pool: asyncpg.Pool) -> datetime | None:
    """Return the minute of the first packet; None when none is counted."""
    first: datetime | None = await pool.fetchval(_FIRST)
    return first


async def entries_behind(pool: asyncpg.Pool) -> int:
    """Return how many entries are not counted by minute, agent and day yet."""
    return int(await pool.fetchval(_BEHIND))


@dataclass(frozen=True, slots=True)
class AgentDayRow:
    """What an agent did on a day in UTC."""

    agent_id: str
    day: date
    packets: int
    refused: int
    handled: int
    failed: int
    tokens: float
    cost: float


async def list_agent_days(
    pool: asyncpg.Pool, agent_id: str | None, since: date, until: date, *, limit: int
) -> list[AgentDayRow]:
    """Return the days of an agent, or of all, the newest first; of a day the dearest first."""
    return [AgentDayRow(**row) for row in await pool.fetch(_DAYS, agent_id, since, until, limit)]


async def read_latencies(
    pool: asyncpg.Pool, agent_id: str, since: date, until: date, shares: Sequence[float]
) -> list[float | None]:
    """Return within how many milliseconds these shares of an agent's deliveries had their outcome; None of no delivery.

    A value is off by 9 % at most: deliveries are counted in steps of a fourth root of 2.
    """
    steps = [(row["step"], row["deliveries"]) for row in await pool.fetch(_STEPS, agent_id, since, until)]
    return [_share_of(steps, share) for share in shares]


def _share_of(steps: Sequence[tuple[int, int]], share: float) -> float | None:
    wanted = share * sum(deliveries for _, deliveries in steps)
    seen = 0
    for step, deliveries in steps:
        seen += deliveries
        if seen >= wanted:
            return float(2 ** ((step + 0.5) / 4))
    return None


@dataclass(frozen=True, slots=True)
class LatestPacket:
    """A packet that an agent sent or was sent."""

    shard: int
    seq: int
    packet_id: UUID
    session_id: str
    run_id: str
    packet_type: str
    sender: str
    recipients: list[str]
    verdict: str
    refusal_code: str | None
    at: datetime


async def latest_packets(pool: asyncpg.Pool, agent_id: str, limit: int) -> list[LatestPacket]:
    """Return the newest packets that an agent sent or was sent, without HEARTBEATs.

    Raises:
        ArchiveUnavailable: some of them were released, and there is no archive.
    """
    query = f"{_lexeme(f'agent={agent_id}')} & !{_lexeme('type=HEARTBEAT')}"
    rows = [LatestPacket(**row) for row in await pool.fetch(_LATEST, query, limit)]
    gone = await released_in(pool, Reach())
    until = await released_until(pool)
    if not gone or (len(rows) == limit and until is not None and all(row.at > until for row in rows)):
        return rows
    async with sought(pool, Reach(sought=Sought(limit, True, agent=agent_id)), gone) as archive:
        if archive is None:
            raise await unavailable(pool, gone[0])
        rows += [LatestPacket(**row) for row in await archive.fetch(_LATEST, query, limit)]
    rows.sort(key=lambda row: (row.shard, row.seq))
    return sorted(rows, key=lambda row: row.at, reverse=True)[:limit]


def _lexeme(text: str) -> str:
    """Return a text as one word of a tsquery, whatever is in it."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

"""Entries of a session counted by ranges of the log, so that a fold over many need not read each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

# Signals that move a session are read one by one (entries.py); an escaped one may be any of them.
_IS_MOVING = """
packet_type = 'SIGNAL' AND verdict = 'accepted'
AND (position('START'::bytea IN body_stored) > 0 OR position('PAUSE'::bytea IN body_stored) > 0
     OR position('RESUME'::bytea IN body_stored) > 0 OR position('\\x5c75'::bytea IN body_stored) > 0)
"""
_NARROWED = "session_id = $1 AND shard = $2 AND seq > $3 AND seq <= $4"
_PACKETS = f"""
SELECT (seq - $3 - 1) / $5 AS range, packet_type, sender_agent_id, verdict, refusal_code, count(*) AS count
FROM apc_log.agent_packets WHERE {_NARROWED} AND NOT ({_IS_MOVING}) GROUP BY 1, 2, 3, 4, 5 ORDER BY 1
"""
_MOVING = f"SELECT seq FROM apc_log.agent_packets WHERE {_NARROWED} AND {_IS_MOVING} ORDER BY seq"
_USED = (
    "(metadata -> 'usage' ->> '{0}')::double precision"
    " - coalesce((metadata -> 'usage_refused' ->> '{0}')::double precision, 0)"
)
_HOPS = f"""
WITH hop AS MATERIALIZED (
    SELECT (seq - $3 - 1) / $5 AS range, packet_id, recipient = '' AS is_whole, from_state, to_state, metadata
    FROM apc_log.packet_events WHERE {_NARROWED}
), routed AS (
    SELECT hop.range, sum(cardinality(packet.recipients)) AS recipients
    FROM hop JOIN apc_log.packet_ids AS ids ON ids.session_id = $1 AND ids.packet_id = hop.packet_id
    JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
    WHERE hop.is_whole AND hop.to_state = 'ROUTED' GROUP BY 1
), counted AS (
    SELECT range, is_whole, from_state, to_state,
           CASE WHEN is_whole AND from_state = 'SCHEMA_VALIDATED' THEN
                CASE WHEN to_state = 'ROUTED' THEN 'accepted' WHEN metadata ? 'refusal' THEN 'refused' END
           END AS verdict,
           metadata -> 'refusal' ->> 'code' AS refusal_code, count(*) AS count,
           sum({_USED.format("tokens")}) AS tokens, sum({_USED.format("cost")}) AS cost
    FROM hop GROUP BY 1, 2, 3, 4, 5, 6
)
SELECT counted.range, is_whole, from_state, to_state, verdict, refusal_code, count, tokens, cost, 0 AS recipients
FROM counted
UNION ALL SELECT range, true, '', 'ROUTED', NULL, NULL, 0, NULL, NULL, recipients::bigint FROM routed
ORDER BY 1
"""
_MOVED = f"SELECT seq FROM apc_log.coordination_events WHERE {_NARROWED} ORDER BY seq"
_EXTENT = """
SELECT count(*) AS packets, min(seq) AS first FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2
"""


@dataclass(frozen=True, slots=True)
class PacketCount:
    """Packets of a range that the fold cannot tell apart."""

    range: int
    packet_type: str
    sender_agent_id: str
    verdict: str
    refusal_code: str | None
    count: int


@dataclass(frozen=True, slots=True)
class HopCount:
    """Hops of a range that the fold cannot tell apart, or the recipients of all that routed a packet."""

    range: int
    is_whole: bool
    """It is a hop of the whole packet, not of one delivery."""
    from_state: str
    to_state: str
    verdict: str | None
    refusal_code: str | None
    count: int
    tokens: float | None
    cost: float | None
    recipients: int


@dataclass(frozen=True, slots=True)
class CountedRanges:
    """A part of a session's log; range n holds the entries with after + n * width < seq <= after + (n + 1) * width."""

    packets: Sequence[PacketCount]
    hops: Sequence[HopCount]
    single: Sequence[int]
    """Positions of the entries that move the session: they are in no count."""


async def count_ranges(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, last: int, width: int
) -> CountedRanges:
    """Return the entries of a session with after < seq <= last, counted by ranges of `width` positions."""
    given = (session_id, shard, after, last)
    packets = [PacketCount(**row) for row in await pool.fetch(_PACKETS, *given, width)]
    hops = [HopCount(**row) for row in await pool.fetch(_HOPS, *given, width)]
    moving = [row["seq"] for row in await pool.fetch(_MOVING, *given)]
    moved = [row["seq"] for row in await pool.fetch(_MOVED, *given)]
    return CountedRanges(packets, hops, sorted(moving + moved))


async def extent_of(pool: asyncpg.Pool, session_id: str, shard: int) -> tuple[int, int]:
    """Return how many packets a session has, and the position of the first; (0, 0) when it has none."""
    row = await pool.fetchrow(_EXTENT, session_id, shard)
    return (0, 0) if row is None else (row["packets"], row["first"] or 0)

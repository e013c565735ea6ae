"""Counts of what the log has taken since a time, and which of some packets it holds."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

_LOGGED = """
SELECT packet_id::text FROM apc_log.agent_packets WHERE packet_id = ANY($1)
UNION SELECT packet_id::text FROM apc_log.packet_conflicts WHERE packet_id = ANY($1)
"""
_VERDICTS = """
SELECT coalesce(refusal_code, verdict) AS name, count(*) AS count FROM apc_log.agent_packets
WHERE recorded_at >= $1 GROUP BY 1
"""
_SET_ASIDE = "SELECT kind AS name, count(*) AS count FROM apc_log.packet_conflicts WHERE recorded_at >= $1 GROUP BY 1"
_DELIVERIES = """
SELECT state AS name, count(*) AS count FROM apc_log.packet_recipient_state
WHERE recipient <> '' AND recorded_at >= $1 GROUP BY 1
"""
_RETRIED = """
SELECT count(DISTINCT (packet_id, recipient)) FROM apc_log.packet_events WHERE attempt > 1 AND recorded_at >= $1
"""


async def find_logged(pool: asyncpg.Pool, packet_ids: Sequence[UUID]) -> set[str]:
    """Return which of these packets the log holds, those set aside too."""
    return {row["packet_id"] for row in await pool.fetch(_LOGGED, packet_ids)}


async def count_verdicts(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many packets got each verdict; refused ones by the code of their refusal."""
    return await _counts(pool, _VERDICTS, since)


async def count_set_aside(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many entries were set aside as conflicts, by kind."""
    return await _counts(pool, _SET_ASIDE, since)


async def count_deliveries(pool: asyncpg.Pool, since: datetime) -> dict[str, int]:
    """Return how many deliveries are in each state."""
    return await _counts(pool, _DELIVERIES, since)


async def count_retried(pool: asyncpg.Pool, since: datetime) -> int:
    """Return how many deliveries had more than one attempt."""
    retried: int = await pool.fetchval(_RETRIED, since)
    return retried


async def _counts(pool: asyncpg.Pool, query: str, since: datetime) -> dict[str, int]:
    return {row["name"]: row["count"] for row in await pool.fetch(query, since)}

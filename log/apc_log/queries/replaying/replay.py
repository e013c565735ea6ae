"""`apc packet replay`: everything that happened in a run, in the order of the log."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import asyncpg

from apc_log.heads import read_ends
from apc_log.queries.bodies import opened_bodies
from apc_log.queries.rows import ConflictRow, CoordinationRow, LogRow, Position, TransitionRow
from apc_log.queries.statements import columns, to_row
from apc_log.queries.trace import BEGINNING, list_agent_packets

PAGE = 500

_SESSIONS = (
    "SELECT DISTINCT session_id FROM apc_log.agent_packets WHERE run_id = $1 AND ($2::text IS NULL OR task_id = $2)"
)
# The hops of each session stand in the order of the log (index packet_events_session): a page reads no more of them
# than it shows. A hop is of the run when its packet is.
_HOPS = f"""
SELECT {columns(TransitionRow, "step")} FROM (
    SELECT page.shard, page.seq FROM unnest($1::text[]) AS one(session_id)
    CROSS JOIN LATERAL (
        SELECT hop.shard, hop.seq FROM apc_log.packet_events AS hop
        WHERE hop.session_id = one.session_id AND (hop.shard, hop.seq) > ($2, $3) AND hop.to_state <> '' AND EXISTS (
            SELECT FROM apc_log.packet_ids AS named
            JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
            WHERE named.session_id = hop.session_id AND named.packet_id = hop.packet_id
              AND packet.run_id = $5 AND ($6::text IS NULL OR packet.task_id = $6))
        ORDER BY hop.shard, hop.seq LIMIT $4
    ) AS page
    ORDER BY page.shard, page.seq LIMIT $4
) AS hop
JOIN apc_log.packet_transitions AS step ON step.shard = hop.shard AND step.seq = hop.seq
ORDER BY step.shard, step.seq, step.ordinal
"""
_COORDINATION = f"""
SELECT {columns(CoordinationRow, "moved")} FROM apc_log.coordination_events AS moved
WHERE moved.session_id IN (SELECT session_id FROM apc_log.sessions WHERE run_id = $1)
  AND (moved.shard, moved.seq) > ($2, $3)
ORDER BY moved.shard, moved.seq LIMIT $4
"""

_CONFLICTS = f"""
SELECT {columns(ConflictRow, "one")} FROM apc_log.packet_conflicts AS one
WHERE one.session_id = ANY ($1) AND (one.shard, one.seq) > ($2, $3) ORDER BY one.shard, one.seq LIMIT $4
"""


@dataclass(frozen=True, slots=True)
class ReplayPage:
    """Entries of a run in the order of the log, and where the next page begins; None at the end."""

    rows: tuple[LogRow, ...]
    after: Position | None


@dataclass(frozen=True, slots=True)
class _ReplayRun:
    """What is read of the log, and how far it went when the reading began: an entry that is logged between two queries
    of a page would come without those before it."""

    run_id: str
    task_id: str | None
    sessions: list[str]
    ends: Mapping[int, int]
    """shard -> its last seq."""


async def replay_page(
    pool: asyncpg.Pool, run_id: str, task_id: str | None = None, *, limit: int = 100, after: Position | None = None
) -> ReplayPage:
    """Return at most `limit` entries of a run after `after`; a hop is one entry with all its transitions.

    Bodies as `opened_bodies` gives them.
    """
    return await _page(pool, await _find(pool, run_id, task_id), limit, after or BEGINNING)


async def replay(
    pool: asyncpg.Pool, run_id: str, task_id: str | None = None, *, after: Position | None = None
) -> AsyncIterator[LogRow]:
    """Yield packets, transitions, conflicts and coordination events of a run in causal order.

    Causal order is (shard, seq): a session lives in one shard, and what follows from an entry comes behind
    it. With `task_id` only the packets of that task and their transitions; coordination events are the
    sessions' own and stay. The log as it is when the replay begins: it only grows, so no transaction is held
    open while the caller reads.
    """
    run = await _find(pool, run_id, task_id)
    page = await _page(pool, run, PAGE, after or BEGINNING)
    while True:
        for row in page.rows:
            yield row
        if page.after is None:
            return
        page = await _page(pool, run, PAGE, page.after)


async def _find(pool: asyncpg.Pool, run_id: str, task_id: str | None) -> _ReplayRun:
    ends = await read_ends(pool)
    sessions = [record["session_id"] for record in await pool.fetch(_SESSIONS, run_id, task_id)]
    return _ReplayRun(run_id, task_id, sessions, ends)


async def _page(pool: asyncpg.Pool, run: _ReplayRun, limit: int, after: Position) -> ReplayPage:
    packets = await list_agent_packets(pool, run_id=run.run_id, task_id=run.task_id, limit=limit, after=after)
    hops = await pool.fetch(_HOPS, run.sessions, *after, limit, run.run_id, run.task_id)
    moves = await pool.fetch(_COORDINATION, run.run_id, *after, limit)
    conflicts = await pool.fetch(_CONFLICTS, run.sessions, *after, limit)
    read: list[LogRow] = [
        *await opened_bodies(pool, packets),
        *(to_row(TransitionRow, record) for record in hops),
        *(to_row(CoordinationRow, record) for record in moves),
        *(to_row(ConflictRow, record) for record in conflicts),
    ]
    found = sorted((row for row in read if row.seq <= run.ends.get(row.shard, 0)), key=_key)
    places = sorted({row.position for row in found})
    if len(places) < limit:
        return ReplayPage(tuple(found), None)
    last = places[limit - 1]
    return ReplayPage(tuple(row for row in found if row.position <= last), last)


def _key(row: LogRow) -> tuple[Position, int]:
    return (row.position, getattr(row, "ordinal", 0))

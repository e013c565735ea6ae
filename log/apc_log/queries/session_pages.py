"""Runs and sessions for the web console: pages, figures and moves; entries counted by ranges of the log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict, Unpack
from uuid import UUID

import asyncpg

from apc_contracts.session.document import SessionDocument, decode_document
from apc_log.heads import Reach, bounded, of_given, read_range, reads

# Signals that move a session are read one by one (packet_pages.py); an escaped one may be any of them.
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
      /*within ids*/
    JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq /*within packet*/
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
SELECT count(*) AS packets, min(seq) AS first FROM apc_log.agent_packets
WHERE session_id = $1 AND shard = $2 /*within agent_packets*/
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


@reads(of_given)
async def count_ranges(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, last: int, width: int
) -> CountedRanges:
    """Return the entries of a session with after < seq <= last, counted by ranges of `width` positions."""
    given = (session_id, shard, after, last)
    packets = [PacketCount(**row) for row in await pool.fetch(_PACKETS, *given, width)]
    bounds = await read_range(pool, [session_id])
    hops = [HopCount(**row) for row in await pool.fetch(*bounded(_HOPS, bounds, *given, width))]
    moving = [row["seq"] for row in await pool.fetch(_MOVING, *given)]
    moved = [row["seq"] for row in await pool.fetch(_MOVED, *given)]
    return CountedRanges(packets, hops, sorted(moving + moved))


@reads(of_given)
async def extent_of(pool: asyncpg.Pool, session_id: str, shard: int) -> tuple[int, int]:
    """Return how many packets a session has, and the position of the first; (0, 0) when it has none."""
    bounds = await read_range(pool, [session_id])
    row = await pool.fetchrow(*bounded(_EXTENT, bounds, session_id, shard))
    return (0, 0) if row is None else (row["packets"], row["first"] or 0)


# Pages of runs and sessions, and the figures and moves of one session.

_SESSIONS = """
SELECT session_id, shard, is_terminal, open_deliveries, updated_at, document FROM apc_log.sessions
WHERE ($1::text IS NULL OR run_id = $1) AND ($2::boolean IS NULL OR is_terminal = NOT $2)
  AND ($3::timestamptz IS NULL OR (updated_at, session_id) < ($3, $4))
ORDER BY updated_at DESC, session_id DESC LIMIT $5
"""
_OF_OPENER = """
FROM apc_log.sessions WHERE document ->> 'opener' = $1 AND ($2::text IS NULL OR run_id = $2)
  AND ($3::timestamptz IS NULL OR updated_at >= $3) AND ($4::text[] IS NULL OR state = ANY ($4))
  AND ($5::boolean IS NULL OR is_terminal = NOT $5)
"""
_PAGE_OF_OPENER = f"""
SELECT session_id, shard, is_terminal, open_deliveries, updated_at, document {_OF_OPENER}
  AND ($6::timestamptz IS NULL OR (updated_at, session_id) < ($6, $7))
ORDER BY updated_at DESC, session_id DESC LIMIT $8
"""
_COUNT_OF_OPENER = f"SELECT count(*) {_OF_OPENER}"
_OTHER_OPENER = """
SELECT EXISTS (SELECT FROM apc_log.sessions WHERE run_id = $1 AND document ->> 'opener' <> $2)
"""
_ONE = """
SELECT session_id, shard, is_terminal, open_deliveries, updated_at, document FROM apc_log.sessions WHERE session_id = $1
"""
_RUNS = """
SELECT run_id, count(*) AS sessions, count(*) FILTER (WHERE NOT is_terminal) AS running,
       sum(open_deliveries)::bigint AS open_deliveries, max(updated_at) AS updated_at
FROM apc_log.sessions WHERE run_id = ANY ($1) GROUP BY run_id
"""
_OF_RUNS = """
SELECT run_id, session_id, state, document FROM apc_log.sessions WHERE run_id = ANY ($1)
ORDER BY updated_at DESC, session_id DESC LIMIT $2
"""
_MOST_SESSIONS = 2_000
_VERDICTS = """
SELECT verdict, refusal_code, count(*) AS count, min(seq) AS first FROM apc_log.agent_packets
WHERE session_id = $1 /*within agent_packets*/ GROUP BY 1, 2
UNION ALL
SELECT CASE WHEN to_state = 'ROUTED' THEN 'accepted' ELSE 'refused' END, metadata -> 'refusal' ->> 'code', count(*),
       NULL
FROM apc_log.packet_events
WHERE session_id = $1 AND recipient = '' AND from_state = 'SCHEMA_VALIDATED'
  AND (to_state = 'ROUTED' OR metadata ? 'refusal') /*within packet_events*/ GROUP BY 1, 2
"""
_LAST = """
SELECT greatest(
    (SELECT max(seq) FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2 /*within agent_packets*/),
    (SELECT max(seq) FROM apc_log.packet_events WHERE session_id = $1 AND shard = $2 /*within packet_events*/),
    (SELECT max(seq) FROM apc_log.coordination_events
     WHERE session_id = $1 AND shard = $2 /*within coordination_events*/)
)
"""
_MOVES = """
SELECT seq, recorded_at, event, from_state, to_state, round, generation, step, cause_packet_id
FROM apc_log.coordination_events WHERE session_id = $1 AND seq > $2 /*within coordination_events*/ ORDER BY seq LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class SessionPlace:
    """A session after its last batch, and the shard of its log."""

    session_id: str
    shard: int
    is_terminal: bool
    open_deliveries: int
    updated_at: datetime
    document: SessionDocument


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What the sessions of a run add up to; `latest` are those that changed last."""

    run_id: str
    sessions: int
    running: int
    open_deliveries: int
    updated_at: datetime
    latest: list[tuple[str, str, SessionDocument]]
    """session_id, state, document."""


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Counts of a session's packets."""

    packets: int
    first_seq: int
    last_seq: int
    verdicts: dict[str, int]
    refusals: dict[str, int]
    """By code; those of held packets that a ruling refused, too."""


@dataclass(frozen=True, slots=True)
class MoveRow:
    """A transition or a barrier of a session."""

    seq: int
    recorded_at: datetime
    event: str
    from_state: str
    to_state: str
    round: int
    generation: int
    step: int
    cause_packet_id: UUID


async def page_of_sessions(
    pool: asyncpg.Pool,
    *,
    run_id: str | None = None,
    only_running: bool | None = None,
    before: tuple[datetime, str] | None = None,
    limit: int = 100,
) -> list[SessionPlace]:
    """Return the sessions that changed last first, behind `before`."""
    at, name = before or (None, None)
    return [_place(row) for row in await pool.fetch(_SESSIONS, run_id, only_running, at, name, limit)]


class OpenerFilters(TypedDict, total=False):
    """What narrows the sessions of an opener: their run, when they changed last, their states, whether they go on."""

    run_id: str | None
    since: datetime | None
    states: Sequence[str] | None
    running: bool | None


async def sessions_of_opener(
    pool: asyncpg.Pool,
    opener: str,
    *,
    before: tuple[datetime, str] | None = None,
    limit: int = 100,
    **filters: Unpack[OpenerFilters],
) -> list[SessionPlace]:
    """Return the sessions that an agent has opened, those that changed last first, behind `before`."""
    rows = await pool.fetch(_PAGE_OF_OPENER, opener, *_given(filters), *(before or (None, None)), limit)
    return [_place(row) for row in rows]


async def count_of_opener(pool: asyncpg.Pool, opener: str, **filters: Unpack[OpenerFilters]) -> int:
    """Return how many sessions an agent has opened."""
    found: int = await pool.fetchval(_COUNT_OF_OPENER, opener, *_given(filters))
    return found


async def has_other_opener(pool: asyncpg.Pool, run_id: str, opener: str) -> bool:
    """Return whether somebody else has opened a session of a run."""
    return bool(await pool.fetchval(_OTHER_OPENER, run_id, opener))


def _given(filters: OpenerFilters) -> tuple[str | None, datetime | None, list[str] | None, bool | None]:
    states = filters.get("states")
    listed = None if states is None else list(states)
    return filters.get("run_id"), filters.get("since"), listed, filters.get("running")


async def find_session(pool: asyncpg.Pool, session_id: str) -> SessionPlace | None:
    """Return a session; None when the log knows none of that name."""
    row = await pool.fetchrow(_ONE, session_id)
    return None if row is None else _place(row)


async def figures_of_runs(pool: asyncpg.Pool, run_ids: Sequence[str]) -> list[RunFigures]:
    """Return these runs as far as the log knows them, with at most 2,000 sessions of them together."""
    rows = await pool.fetch(_RUNS, list(run_ids))
    latest: dict[str, list[tuple[str, str, SessionDocument]]] = {row["run_id"]: [] for row in rows}
    for row in await pool.fetch(_OF_RUNS, list(latest), _MOST_SESSIONS):
        latest[row["run_id"]].append((row["session_id"], row["state"], decode_document(row["document"])))
    return [RunFigures(**row, latest=latest[row["run_id"]]) for row in rows]


@reads(lambda given: Reach(sessions=[given["place"].session_id]))
async def session_figures(pool: asyncpg.Pool, place: SessionPlace) -> SessionFigures:
    """Return counts of a session's packets; they are counted in the database."""
    verdicts: dict[str, int] = {}
    refusals: dict[str, int] = {}
    bounds = await read_range(pool, [place.session_id])
    rows = await pool.fetch(*bounded(_VERDICTS, bounds, place.session_id))
    for row in rows:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + row["count"]
        if row["first"] is None:  # rulings on packets that were held
            verdicts["held"] = verdicts.get("held", 0) - row["count"]
        if row["refusal_code"] is not None:
            refusals[row["refusal_code"]] = refusals.get(row["refusal_code"], 0) + row["count"]
    return SessionFigures(
        packets=sum(verdicts.values()),
        first_seq=min((row["first"] for row in rows if row["first"] is not None), default=0),
        last_seq=await last_entry(pool, place.session_id, place.shard),
        verdicts={verdict: count for verdict, count in verdicts.items() if count},
        refusals=refusals,
    )


@reads(of_given)
async def last_entry(pool: asyncpg.Pool, session_id: str, shard: int) -> int:
    """Return the position of a session's last entry; 0 when it has none."""
    bounds = await read_range(pool, [session_id])
    return await pool.fetchval(*bounded(_LAST, bounds, session_id, shard)) or 0


@reads(of_given)
async def page_of_moves(pool: asyncpg.Pool, session_id: str, *, after: int = 0, limit: int = 500) -> list[MoveRow]:
    """Return the transitions and barriers of a session behind `after`, oldest first."""
    bounds = await read_range(pool, [session_id])
    return [MoveRow(**row) for row in await pool.fetch(*bounded(_MOVES, bounds, session_id, after, limit))]


def _place(row: asyncpg.Record) -> SessionPlace:
    fields = dict(row)
    return SessionPlace(**fields | {"document": decode_document(fields["document"])})

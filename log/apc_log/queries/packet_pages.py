"""Packets for the web console: entries for a feed, pages without bodies, neighbours, text search, columns to draw."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any
from uuid import UUID

import asyncpg

from apc_log.heads import (
    Given,
    Gone,
    LogRange,
    Reach,
    bounded,
    is_last_page,
    of_given,
    of_page,
    of_places,
    range_of,
    read_range,
    reads,
    windowed,
)
from apc_log.queries.packets import FILTERS, PacketHead, Position, narrowed, read_page

RULING = """
LEFT JOIN LATERAL (
    SELECT CASE WHEN hop.to_state = 'ROUTED' THEN 'accepted'
                WHEN hop.metadata ? 'refusal' THEN 'refused' END AS verdict,
           hop.metadata -> 'refusal' ->> 'code' AS code
    FROM apc_log.packet_events AS hop
    WHERE packet.verdict = 'held' AND hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id
      AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' /*within hop*/
    ORDER BY hop.seq LIMIT 1
) AS ruling ON true
"""
"""Joins the ruling of a barrier or of RESUME; looks up nothing for other packets."""
VERDICT = "coalesce(ruling.verdict, packet.verdict)"
"""`held` while there is no ruling."""
CODE = "coalesce(packet.refusal_code, ruling.code)"


# The entries of packets, hops and coordination in the order of the log, in the few columns that a feed needs.

# Each part is limited by itself: a page must not read the rest of a large session. A hop that routes the whole packet
# tells to whom: its deliveries begin there.
_PARTS = """
(SELECT shard, seq, 'packet' AS kind, session_id, run_id, judged_at AS at, packet_id, packet_type,
       sender_agent_id AS sender, recipients, NULL AS recipient, verdict, refusal_code, run_phase, round,
       generation::bigint, step::bigint,
       cause_packet_id, parent_packet_id, NULL::text AS event, NULL::text AS from_state, NULL::text AS to_state,
       NULL::integer AS attempt, NULL::text AS metadata,
       CASE WHEN packet_type = 'SIGNAL' THEN body_stored END AS body
FROM apc_log.agent_packets WHERE {narrowed})
UNION ALL
(SELECT shard, seq, 'hop', session_id, NULL, occurred_at[array_length(occurred_at, 1)], packet_id, NULL, actor,
       CASE WHEN recipient = '' AND to_state = 'ROUTED' THEN (
                SELECT packet.recipients FROM apc_log.packet_ids AS ids JOIN apc_log.agent_packets AS packet
                  ON packet.shard = ids.shard AND packet.seq = ids.seq
                WHERE ids.session_id = hop.session_id AND ids.packet_id = hop.packet_id)
            ELSE '{{}}' END, recipient,
       CASE WHEN recipient <> '' OR from_state <> 'SCHEMA_VALIDATED' THEN NULL
            WHEN to_state = 'ROUTED' THEN 'accepted' WHEN metadata ? 'refusal' THEN 'refused' END,
       metadata -> 'refusal' ->> 'code', NULL, NULL, NULL, NULL, NULL, NULL, events[array_length(events, 1)],
       from_state, to_state, attempt, metadata::text, NULL
FROM apc_log.packet_events AS hop WHERE {narrowed})
UNION ALL
(SELECT shard, seq, 'coordination', session_id, NULL, recorded_at, cause_packet_id, NULL, NULL, '{{}}', NULL, NULL,
       NULL, NULL, round, generation, step, cause_packet_id, NULL, event, from_state, to_state, NULL, NULL, NULL
FROM apc_log.coordination_events WHERE {narrowed})
"""
_OF_SESSION = (
    "SELECT * FROM ("
    + _PARTS.format(
        narrowed="session_id = $1 AND shard = $2 AND seq > $3 AND seq <= $4 ORDER BY session_id, shard, seq LIMIT $5"
    )
    + ") AS entry ORDER BY seq LIMIT $5"
)
_OF_SHARD = (
    "SELECT * FROM ("
    + _PARTS.format(narrowed="shard = $1 AND seq > $2 AND seq <= $3 AND ($4::text IS NULL OR session_id = $4)")
    + """) AS entry
    WHERE $5::text IS NULL OR session_id IN (SELECT session_id FROM apc_log.sessions WHERE run_id = $5)
    ORDER BY seq"""
)


_AT_ENTRY = "SELECT * FROM (" + _PARTS.format(narrowed="shard = $1 AND seq = ANY ($2)") + ") AS entry ORDER BY seq"


@reads(of_given)
async def entries_of_session(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, last: int, limit: int
) -> Sequence[asyncpg.Record]:
    """Return at most `limit` entries of a session with after < seq <= last, in the order of the log.

    Columns as above: of a packet `body` is given for SIGNALs alone; `metadata` is a hop's, as a JSON text.
    """
    return await pool.fetch(_OF_SESSION, session_id, shard, after, last, limit)


def _of_span(given: Given) -> Reach:
    return Reach(ranges=[LogRange(given["shard"], given["after"] + 1, given["last"])])


@reads(_of_span)
async def entries_of_shard(
    pool: asyncpg.Pool, shard: int, *, after: int, last: int, session_id: str | None = None, run_id: str | None = None
) -> Sequence[asyncpg.Record]:
    """Return the entries of a shard with after < seq <= last, in the order of the log, as those of a session."""
    return await pool.fetch(_OF_SHARD, shard, after, last, session_id, run_id)


@reads(lambda given: Reach(places=[(given["shard"], seq) for seq in given["positions"]]))
async def entries_at(pool: asyncpg.Pool, shard: int, positions: Sequence[int]) -> Sequence[asyncpg.Record]:
    """Return the entries at these positions of a shard, in the order of the log, as those of a session."""
    return await pool.fetch(_AT_ENTRY, shard, positions)


# Pages of packets without their bodies, in both directions; neighbours of a packet; search in their texts.

_COLUMNS = f"""
packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.session_id, packet.run_id, packet.task_id,
packet.run_phase, packet.round, packet.generation, packet.step, packet.sender_agent_id, packet.sender_role,
packet.sender_swarm_id, packet.recipients, packet.judged_at, {VERDICT} AS verdict, {CODE} AS refusal_code,
packet.parent_packet_id, packet.cause_packet_id
"""
_STATED = """
, (SELECT state FROM apc_log.packet_states(packet.session_id, packet.packet_id, packet.recipients/*range*/) AS now)
  AS state,
EXISTS (SELECT FROM apc_log.packet_stale AS stale
        WHERE stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id /*within stale*/) AS is_stale
"""
LISTED: Mapping[str, str] = {
    **FILTERS,
    "sender": "packet.sender_agent_id = {}",
    "recipient": "{} = ANY (packet.recipients)",
    "verdict": VERDICT + " = {}",
    "refusal_code": CODE + " = {}",
    "generation": "packet.generation = {}",
    "round": "packet.round = {}",
}
"""Filter -> clause: those of `apc packet trace`, and more."""
SCOPES = frozenset({"run_id", "session_id", "task_id"})
"""Filters of which each has an index in the order of the log; those of `UNINDEXED` need one of them."""
UNINDEXED = frozenset({"sender", "recipient", "verdict", "refusal_code", "generation", "round"})
_LINKS = f"""
SELECT packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.sender_agent_id, {VERDICT} AS verdict,
       link.edge
FROM ({{}}) AS link(shard, seq, edge) JOIN apc_log.agent_packets AS packet USING (shard, seq) {RULING}
WHERE packet.seq >= 1 /*within packet*/ ORDER BY packet.shard, packet.seq LIMIT $3
"""
_ABOVE = _LINKS.format(
    """
    SELECT ids.shard, ids.seq, CASE WHEN ids.packet_id = own.cause_packet_id THEN 'cause' ELSE 'parent' END
    FROM apc_log.packet_ids AS own_id JOIN apc_log.agent_packets AS own USING (shard, seq)
    JOIN apc_log.packet_ids AS ids
      ON ids.session_id = $1 AND ids.packet_id IN (own.cause_packet_id, own.parent_packet_id)
    WHERE own_id.session_id = $1 AND own_id.packet_id = $2 /*within own_id*/ /*within own*/ /*within ids*/
    """
)
_BELOW = _LINKS.format(
    """
    SELECT shard, seq, 'cause' FROM apc_log.agent_packets
    WHERE cause_packet_id = $2 AND session_id = $1 /*within agent_packets*/
    UNION ALL
    SELECT shard, seq, 'parent' FROM apc_log.agent_packets
    WHERE parent_packet_id = $2 AND cause_packet_id IS DISTINCT FROM $2 AND session_id = $1 /*within agent_packets*/
    """
)
_LOOKED = """
SELECT looked.shard, looked.seq, coalesce(strpos(lower(content.packet::text), lower(${text})) > 0, false) AS is_match
FROM (SELECT packet.shard, packet.seq FROM apc_log.agent_packets AS packet {ruling} {where}
      ORDER BY packet.shard {order}, packet.seq {order} LIMIT ${at}) AS looked
LEFT JOIN apc_log.packets AS content USING (shard, seq)
ORDER BY looked.shard {order}, looked.seq {order}
"""
_AT_PLACES = f"""
SELECT {_COLUMNS}{_STATED} FROM unnest($1::integer[], $2::bigint[]) WITH ORDINALITY AS place(shard, seq, number)
JOIN apc_log.agent_packets AS packet USING (shard, seq) {RULING}
WHERE packet.seq >= 1 /*within packet*/ /*window packet*/ ORDER BY place.number
"""
_AT = "SELECT packet_id, session_id FROM apc_log.agent_packets WHERE shard = $1 AND seq = $2"
_SESSIONS_OF = "SELECT session_id FROM apc_log.packet_ids WHERE packet_id = $1 ORDER BY shard, seq LIMIT 20"
_BODIES = """
SELECT packet.shard, packet.seq, packet.packet_type, packet.body_stored
FROM unnest($1::integer[], $2::bigint[]) AS place(shard, seq) JOIN apc_log.agent_packets AS packet USING (shard, seq)
ORDER BY packet.shard, packet.seq
"""
_OF_SESSION_AT = """
SELECT shard, seq FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2 AND seq = ANY ($3::bigint[])
  /*within agent_packets*/ ORDER BY seq
"""
_PLACES = """
SELECT packet_id, shard, seq FROM apc_log.packet_ids
WHERE session_id = $1 AND packet_id = ANY ($2::uuid[]) /*within packet_ids*/
"""
_KEYS = "SELECT key_id FROM apc_keys.subject_keys WHERE key_id = ANY ($1::uuid[])"
_BODY = """
SELECT packet.body_stored FROM apc_log.packet_ids AS ids JOIN apc_log.agent_packets AS packet USING (shard, seq)
WHERE ids.session_id = $1 AND ids.packet_id = $2 /*within ids*/ /*within packet*/
"""


@dataclass(frozen=True, slots=True)
class PacketLine(PacketHead):
    """A packet in a list, with its final verdict and its state now."""

    run_id: str
    task_id: str
    round: int
    step: int
    sender_role: str
    sender_swarm_id: str
    parent_packet_id: UUID | None
    cause_packet_id: UUID | None
    state: str
    is_stale: bool


@dataclass(frozen=True, slots=True)
class LinkRow:
    """A neighbour of a packet. `edge`: cause or parent."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    verdict: str
    edge: str


@dataclass(frozen=True, slots=True)
class SearchStep:
    """A range of the log that a text search has looked at."""

    found: list[PacketLine]
    looked_at: int
    last: Position | None
    """The last packet that was looked at; None when there was none."""


@reads(of_page, enough=is_last_page)
async def page_of_packets(
    pool: asyncpg.Pool, given: Mapping[str, Any], *, newest: bool, after: Position | None, limit: int
) -> list[PacketLine]:
    """Return packets that match everything given, in the order of the log or against it, behind `after`."""
    order = "DESC" if newest else "ASC"
    session_id = given.get("session_id")
    bounds = None if session_id is None else await read_range(pool, [session_id])
    is_ruled = given.get("verdict") is not None or given.get("refusal_code") is not None
    where, values = _where_behind(given, newest)
    statement = (
        f"SELECT packet.shard, packet.seq, packet.session_id, packet.packet_id FROM apc_log.agent_packets AS packet "
        f"{RULING if is_ruled else ''} {where} /*within packet*/ /*window packet*/ "
        f"ORDER BY packet.shard {order}, packet.seq {order} LIMIT ${len(values) + 3}"
    )
    run_id = given.get("run_id")
    rows = await read_page(statement, values, pool, after, limit, newest=newest, within=bounds, run_id=run_id)
    lines: list[PacketLine] = []
    for _, of_shard in groupby(rows, lambda row: row["shard"]):
        part = list(of_shard)
        places = [Position(row["shard"], row["seq"]) for row in part]
        behind = await range_of(pool, places, [(row["session_id"], row["packet_id"]) for row in part])
        lines += await _lines_within(pool, places, behind)
    return lines


def _is_newest_step(step: SearchStep, given: Given, gone: Sequence[Gone], until: datetime | None) -> bool:
    if not given["newest"] or step.looked_at < given["look_at"] or step.last is None:
        return False
    ends = [one.last for one in gone if one.shard == step.last.shard]
    return all(one.shard <= step.last.shard for one in gone) and step.last.seq > max(ends, default=0)


def _of_listed(given: Given) -> Reach:
    return replace(of_page({**given, "limit": 0}), page=None)


@reads(_of_listed, enough=_is_newest_step)
async def search_packets(
    pool: asyncpg.Pool,
    given: Mapping[str, Any],
    text: str,
    *,
    newest: bool,
    after: Position | None,
    look_at: int,
) -> SearchStep:
    """Return the packets of the next `look_at` ones whose readable body contains a text, whatever its case."""
    where, values = _where(given, newest, after)
    order = "DESC" if newest else "ASC"
    at, text_at = len(values) + 1, len(values) + 2
    statement = _LOOKED.format(ruling=RULING, where=where, order=order, at=at, text=text_at)
    looked = await pool.fetch(statement, *values, look_at, text)
    matching = [Position(row["shard"], row["seq"]) for row in looked if row["is_match"]]
    last = Position(looked[-1]["shard"], looked[-1]["seq"]) if looked else None
    return SearchStep(await lines_at(pool, matching), len(looked), last)


@reads(of_places)
async def packet_at(pool: asyncpg.Pool, position: Position) -> tuple[UUID, str] | None:
    """Return packet_id and session_id of the packet at a position; None when there is none."""
    row = await pool.fetchrow(_AT, position.shard, position.seq)
    return None if row is None else (row["packet_id"], row["session_id"])


@reads(of_given)
async def sessions_of_packet(pool: asyncpg.Pool, packet_id: UUID) -> list[str]:
    """Return the sessions that have a packet of this id, the oldest first."""
    return [row["session_id"] for row in await pool.fetch(_SESSIONS_OF, packet_id)]


@reads(of_given)
async def links_above(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> list[LinkRow]:
    """Return cause and parent of a packet."""
    bounds = await read_range(pool, [session_id])
    return [LinkRow(**row) for row in await pool.fetch(*bounded(_ABOVE, bounds, session_id, packet_id, 2))]


@reads(of_given)
async def links_below(pool: asyncpg.Pool, session_id: str, packet_id: UUID, *, limit: int = 100) -> list[LinkRow]:
    """Return the packets that name this one as their cause or parent, in the order of the log."""
    bounds = await read_range(pool, [session_id])
    return [LinkRow(**row) for row in await pool.fetch(*bounded(_BELOW, bounds, session_id, packet_id, limit))]


@reads(of_given)
async def stored_body(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> bytes | None:
    """Return the bytes of a packet as they are stored, encrypted ones too; None when the log does not hold it."""
    bounds = await read_range(pool, [session_id])
    body: bytes | None = await pool.fetchval(*bounded(_BODY, bounds, session_id, packet_id))
    return body


@reads(of_places)
async def bodies_at(pool: asyncpg.Pool, places: Sequence[Position]) -> dict[Position, tuple[str, bytes]]:
    """Return type and stored bytes of the packets at these positions, in the order of the log."""
    return await bodies_here(pool, places)


async def bodies_here(pool: asyncpg.Pool, places: Sequence[Position]) -> dict[Position, tuple[str, bytes]]:
    """Return as `bodies_at` those that the database has: for what can say which it lacks."""
    rows = await pool.fetch(_BODIES, [place.shard for place in places], [place.seq for place in places])
    return {Position(shard, seq): (packet_type, body) for shard, seq, packet_type, body in rows}


@reads(of_given)
async def places_of_session(
    pool: asyncpg.Pool, session_id: str, shard: int, positions: Collection[int]
) -> list[Position]:
    """Return those of these positions of a shard that are packets of a session."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_OF_SESSION_AT, bounds, session_id, shard, list(set(positions))))
    return [Position(*row) for row in rows]


@reads(of_given)
async def places_of_packets(pool: asyncpg.Pool, session_id: str, packet_ids: Collection[UUID]) -> dict[UUID, Position]:
    """Return the positions of packets of a session by their ids; those that the log does not hold are left out."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_PLACES, bounds, session_id, list(packet_ids)))
    return {row["packet_id"]: Position(row["shard"], row["seq"]) for row in rows}


async def known_keys(pool: asyncpg.Pool, key_ids: Collection[UUID]) -> frozenset[UUID]:
    """Return those of these keys of subjects that were not destroyed."""
    return frozenset(row["key_id"] for row in await pool.fetch(_KEYS, list(key_ids)))


def _where_behind(given: Mapping[str, Any], newest: bool) -> tuple[str, list[Any]]:
    """Return as `_where`; the parameters shard and seq of a place follow the values."""
    clauses, values = narrowed(given, LISTED)
    sign, count = "<" if newest else ">", len(values)
    # The planner passes over shards by the plain comparison alone.
    clauses.append(
        f"(packet.shard, packet.seq) {sign} (${count + 1}, ${count + 2}) AND packet.shard {sign}= ${count + 1}"
    )
    return f"WHERE {' AND '.join(clauses)}", values


def _where(given: Mapping[str, Any], newest: bool, after: Position | None) -> tuple[str, list[Any]]:
    clauses, values = narrowed(given, LISTED)
    if after is not None:
        sign = "<" if newest else ">"
        clauses.append(f"(packet.shard, packet.seq) {sign} (${len(values) + 1}, ${len(values) + 2})")
        values += after
    return f"WHERE {' AND '.join(clauses)}" if clauses else "", values


@reads(of_places)
async def lines_at(pool: asyncpg.Pool, places: Sequence[Position]) -> list[PacketLine]:
    """Return the packets at these places, in this order."""
    # What became of a packet stands behind it.
    is_one = len({place.shard for place in places}) == 1
    return await _lines_within(pool, places, LogRange(*min(places)) if is_one else None)


async def _lines_within(pool: asyncpg.Pool, places: Sequence[Position], behind: LogRange | None) -> list[PacketLine]:
    if not places:
        return []
    shards, seqs = [place.shard for place in places], [place.seq for place in places]
    window = LogRange(shards[0], min(seqs), max(seqs)) if len(set(shards)) == 1 else None
    text, *values = bounded(_AT_PLACES, behind, shards, seqs)
    return [PacketLine(**row) for row in await pool.fetch(*windowed(text, window, *values))]


# A session's packets as columns for drawing; scores and transfers of a session.

# Ids are compared and not shown: 64 bits of each are read in a third of the time.
_TIMELINE = """
SELECT seq, (extract(epoch FROM judged_at) * 1000)::bigint AS ms, sender_agent_id, packet_type, verdict,
       coalesce(refusal_code, ''), generation, uuid_hash_extended(packet_id, 0),
       uuid_hash_extended(cause_packet_id, 0), uuid_hash_extended(parent_packet_id, 0)
FROM apc_log.agent_packets WHERE session_id = $1 AND shard = $2 AND seq > $3 /*within agent_packets*/
ORDER BY seq LIMIT $4
"""
_RULINGS = """
SELECT uuid_hash_extended(packet_id, 0) AS packet, CASE WHEN to_state = 'ROUTED' THEN 'accepted' ELSE 'refused' END,
       coalesce(metadata -> 'refusal' ->> 'code', '')
FROM apc_log.packet_events
WHERE session_id = $1 AND shard = $2 AND seq > $3 AND recipient = '' AND from_state = 'SCHEMA_VALIDATED'
  AND (to_state = 'ROUTED' OR metadata ? 'refusal') /*within packet_events*/
ORDER BY seq DESC
"""
_SCORES = """
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.sender_agent_id, packet.sender_swarm_id, packet.round,
       packet.generation, packet.verdict,
       (content.packet #>> '{payload,metric_set,outcome}')::double precision AS outcome,
       (content.packet #>> '{payload,metric_set,drift_risk}')::double precision AS drift_risk
FROM apc_log.agent_packets AS packet LEFT JOIN apc_log.packets AS content USING (shard, seq)
WHERE packet.session_id = $1 AND packet.packet_type = 'EVAL' /*within packet*/ /*within content*/
ORDER BY packet.seq LIMIT $2
"""
_TRANSFERS = f"""
SELECT packet.seq, packet.judged_at, packet.packet_id, packet.round, packet.generation, block.protocol_id,
       block.from_swarm, block.to_swarm, {VERDICT} AS verdict, {CODE} AS refusal_code
FROM apc_log.agent_packets AS packet
JOIN apc_log.packet_lineage AS block USING (session_id, packet_id) {RULING}
WHERE packet.session_id = $1 AND packet.packet_type = 'TRANSFER' /*within packet*/ /*within block*/
ORDER BY packet.seq LIMIT $2
"""


@dataclass(frozen=True, slots=True)
class ScoreRow:
    """An EVAL; outcome and drift are None where the body is encrypted."""

    seq: int
    judged_at: datetime
    packet_id: UUID
    sender_agent_id: str
    sender_swarm_id: str
    round: int
    generation: int
    verdict: str
    outcome: float | None
    drift_risk: float | None


@dataclass(frozen=True, slots=True)
class SessionTransferRow:
    """A TRANSFER of a session with its final verdict; `held` while it has none."""

    seq: int
    judged_at: datetime
    packet_id: UUID
    round: int
    generation: int
    protocol_id: str
    from_swarm: str | None
    to_swarm: str | None
    verdict: str
    refusal_code: str | None


@reads(of_given)
async def timeline_rows(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, limit: int
) -> Sequence[asyncpg.Record]:
    """Return packets of a session in the order of the log, as records of ten plain values.

    seq, milliseconds since 1970, sender, type, verdict on arrival, refusal code or '', generation; then 64 bits of the
    ids of the packet, its cause and its parent.
    """
    bounds = await read_range(pool, [session_id])
    return await pool.fetch(*bounded(_TIMELINE, bounds, session_id, shard, after, limit))


@reads(of_given)
async def timeline_rulings(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int
) -> dict[int, tuple[str, str]]:
    """Return the final verdict and code of held packets of a session: 64 bits of the packet's id -> both."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_RULINGS, bounds, session_id, shard, after))
    return {packet: (verdict, code) for packet, verdict, code in rows}


async def session_scores(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[ScoreRow]:
    """Return the EVALs of a session, oldest first."""
    bounds = await read_range(pool, [session_id])
    return [ScoreRow(**row) for row in await pool.fetch(*bounded(_SCORES, bounds, session_id, limit))]


async def session_transfers(pool: asyncpg.Pool, session_id: str, *, limit: int) -> list[SessionTransferRow]:
    """Return the TRANSFERs of a session, oldest first."""
    bounds = await read_range(pool, [session_id])
    return [SessionTransferRow(**row) for row in await pool.fetch(*bounded(_TRANSFERS, bounds, session_id, limit))]

"""Pages of packets without their bodies, in both directions; neighbours of a packet; search in their texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from apc_log.queries.pages.rulings import CODE, RULING, VERDICT
from apc_log.queries.rows import Position

_COLUMNS = f"""
packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.session_id, packet.run_id, packet.task_id,
packet.run_phase, packet.round, packet.generation, packet.step, packet.sender_agent_id, packet.sender_role,
packet.sender_swarm_id, packet.recipients, packet.judged_at, {VERDICT} AS verdict, {CODE} AS refusal_code,
packet.parent_packet_id, packet.cause_packet_id
"""
_STATED = """
, (SELECT state FROM apc_log.packet_states(packet.session_id, packet.packet_id, packet.recipients) AS now) AS state,
EXISTS (SELECT FROM apc_log.packet_stale AS stale
        WHERE stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id) AS is_stale
"""
FILTERS: Mapping[str, str] = {
    "run_id": "packet.run_id = {}",
    "session_id": "packet.session_id = {}",
    "task_id": "packet.task_id = {}",
    "packet_type": "packet.packet_type = {}",
    "run_phase": "packet.run_phase = {}",
    "trace_id": "packet.root_packet_id = {}",
    "sender": "packet.sender_agent_id = {}",
    "recipient": "{} = ANY (packet.recipients)",
    "verdict": VERDICT + " = {}",
    "refusal_code": CODE + " = {}",
    "generation": "packet.generation = {}",
    "round": "packet.round = {}",
}
"""Filter -> clause."""
SCOPES = frozenset({"run_id", "session_id", "task_id"})
"""Filters of which each has an index in the order of the log; those of `UNINDEXED` need one of them."""
UNINDEXED = frozenset({"sender", "recipient", "verdict", "refusal_code", "generation", "round"})
_LINKS = f"""
SELECT packet.shard, packet.seq, packet.packet_id, packet.packet_type, packet.sender_agent_id, {VERDICT} AS verdict,
       link.edge
FROM ({{}}) AS link(shard, seq, edge) JOIN apc_log.agent_packets AS packet USING (shard, seq) {RULING}
ORDER BY packet.shard, packet.seq LIMIT $3
"""
_ABOVE = _LINKS.format(
    """
    SELECT ids.shard, ids.seq, CASE WHEN ids.packet_id = own.cause_packet_id THEN 'cause' ELSE 'parent' END
    FROM apc_log.packet_ids AS own_id JOIN apc_log.agent_packets AS own USING (shard, seq)
    JOIN apc_log.packet_ids AS ids
      ON ids.session_id = $1 AND ids.packet_id IN (own.cause_packet_id, own.parent_packet_id)
    WHERE own_id.session_id = $1 AND own_id.packet_id = $2
    """
)
_BELOW = _LINKS.format(
    """
    SELECT shard, seq, 'cause' FROM apc_log.agent_packets WHERE cause_packet_id = $2 AND session_id = $1
    UNION ALL
    SELECT shard, seq, 'parent' FROM apc_log.agent_packets
    WHERE parent_packet_id = $2 AND cause_packet_id IS DISTINCT FROM $2 AND session_id = $1
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
JOIN apc_log.agent_packets AS packet USING (shard, seq) {RULING} ORDER BY place.number
"""
_AT = "SELECT packet_id, session_id FROM apc_log.agent_packets WHERE shard = $1 AND seq = $2"
_SESSIONS_OF = "SELECT session_id FROM apc_log.packet_ids WHERE packet_id = $1 ORDER BY shard, seq LIMIT 20"
_BODY = """
SELECT packet.body_stored FROM apc_log.packet_ids AS ids JOIN apc_log.agent_packets AS packet USING (shard, seq)
WHERE ids.session_id = $1 AND ids.packet_id = $2
"""


@dataclass(frozen=True, slots=True)
class PacketLine:
    """A packet without body and facts, with its state now."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    session_id: str
    run_id: str
    task_id: str
    run_phase: str
    round: int
    generation: int
    step: int
    sender_agent_id: str
    sender_role: str
    sender_swarm_id: str
    recipients: list[str]
    judged_at: datetime
    verdict: str
    refusal_code: str | None
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


async def page_of_packets(
    pool: asyncpg.Pool, given: Mapping[str, Any], *, newest: bool, after: Position | None, limit: int
) -> list[PacketLine]:
    """Return packets that match everything given, in the order of the log or against it, behind `after`."""
    where, values = _where(given, newest, after)
    order = "DESC" if newest else "ASC"
    statement = (
        f"SELECT {_COLUMNS}{_STATED} FROM apc_log.agent_packets AS packet {RULING} {where} "
        f"ORDER BY packet.shard {order}, packet.seq {order} LIMIT ${len(values) + 1}"
    )
    return [PacketLine(**row) for row in await pool.fetch(statement, *values, limit)]


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
    return SearchStep(await _lines_at(pool, matching), len(looked), last)


async def packet_at(pool: asyncpg.Pool, position: Position) -> tuple[UUID, str] | None:
    """Return packet_id and session_id of the packet at a position; None when there is none."""
    row = await pool.fetchrow(_AT, position.shard, position.seq)
    return None if row is None else (row["packet_id"], row["session_id"])


async def sessions_of_packet(pool: asyncpg.Pool, packet_id: UUID) -> list[str]:
    """Return the sessions that have a packet of this id, the oldest first."""
    return [row["session_id"] for row in await pool.fetch(_SESSIONS_OF, packet_id)]


async def links_above(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> list[LinkRow]:
    """Return cause and parent of a packet."""
    return [LinkRow(**row) for row in await pool.fetch(_ABOVE, session_id, packet_id, 2)]


async def links_below(pool: asyncpg.Pool, session_id: str, packet_id: UUID, *, limit: int = 100) -> list[LinkRow]:
    """Return the packets that name this one as their cause or parent, in the order of the log."""
    return [LinkRow(**row) for row in await pool.fetch(_BELOW, session_id, packet_id, limit)]


async def stored_body(pool: asyncpg.Pool, session_id: str, packet_id: UUID) -> bytes | None:
    """Return the bytes of a packet as they are stored, encrypted ones too; None when the log does not hold it."""
    body: bytes | None = await pool.fetchval(_BODY, session_id, packet_id)
    return body


def _where(given: Mapping[str, Any], newest: bool, after: Position | None) -> tuple[str, list[Any]]:
    clauses = [FILTERS[name].format(f"${at}") for at, name in enumerate(given, 1)]
    values: list[Any] = list(given.values())
    if after is not None:
        sign = "<" if newest else ">"
        clauses.append(f"(packet.shard, packet.seq) {sign} (${len(values) + 1}, ${len(values) + 2})")
        values += after
    return f"WHERE {' AND '.join(clauses)}" if clauses else "", values


async def _lines_at(pool: asyncpg.Pool, places: Sequence[Position]) -> list[PacketLine]:
    rows = await pool.fetch(_AT_PLACES, [place.shard for place in places], [place.seq for place in places])
    return [PacketLine(**row) for row in rows]

"""The entries of packets, hops and coordination in the order of the log, in the few columns that a feed needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import orjson

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


_AT = "SELECT * FROM (" + _PARTS.format(narrowed="shard = $1 AND seq = ANY ($2)") + ") AS entry ORDER BY seq"


@dataclass(frozen=True, slots=True)
class EntryRow:
    """One entry. Of a packet `body` is given for SIGNALs alone; `metadata` is a hop's."""

    shard: int
    seq: int
    kind: str
    session_id: str
    run_id: str | None
    at: datetime
    packet_id: UUID
    packet_type: str | None
    sender: str | None
    recipients: list[str]
    recipient: str | None
    verdict: str | None
    refusal_code: str | None
    run_phase: str | None
    round: int | None
    generation: int | None
    step: int | None
    cause_packet_id: UUID | None
    parent_packet_id: UUID | None
    event: str | None
    from_state: str | None
    to_state: str | None
    attempt: int | None
    metadata: dict[str, Any] | None
    body: bytes | None


async def entries_of_session(
    pool: asyncpg.Pool, session_id: str, shard: int, *, after: int, last: int, limit: int
) -> list[EntryRow]:
    """Return at most `limit` entries of a session with after < seq <= last, in the order of the log."""
    return [_entry(row) for row in await pool.fetch(_OF_SESSION, session_id, shard, after, last, limit)]


async def entries_of_shard(
    pool: asyncpg.Pool, shard: int, *, after: int, last: int, session_id: str | None = None, run_id: str | None = None
) -> list[EntryRow]:
    """Return the entries of a shard with after < seq <= last, in the order of the log."""
    return [_entry(row) for row in await pool.fetch(_OF_SHARD, shard, after, last, session_id, run_id)]


async def entries_at(pool: asyncpg.Pool, shard: int, positions: Sequence[int]) -> list[EntryRow]:
    """Return the entries at these positions of a shard, in the order of the log."""
    return [_entry(row) for row in await pool.fetch(_AT, shard, positions)]


def _entry(row: asyncpg.Record) -> EntryRow:
    fields = dict(row)
    metadata = fields["metadata"]
    fields["metadata"] = None if metadata is None else orjson.loads(metadata)
    fields["recipients"] = fields["recipients"] or []
    return EntryRow(**fields)

"""Deliveries that ended as dead letters, and have not been requeued, discarded or retracted since."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg
import orjson

from apc_contracts.vocabulary import CONTROL_TYPES
from apc_log.heads import Given, Reach, bounded, read_range, reads
from apc_log.queries.packets import Position

# The newest hop of a recipient is its state; a RETRACTION is one hop of the whole packet.
DEAD = """
SELECT hop.session_id, hop.packet_id, hop.recipient, hop.attempt, hop.metadata ->> 'error' AS reason,
       hop.recorded_at AS died_at, packet.packet_type, packet.sender_agent_id AS sender, packet.run_id,
       packet.task_id, packet.expires_at, hop.shard, hop.seq, session.document ->> 'halt_reason' AS halt_reason
FROM apc_log.packet_events AS hop
JOIN apc_log.agent_packets AS packet ON packet.session_id = hop.session_id AND packet.packet_id = hop.packet_id
  AND packet.shard = hop.shard AND packet.seq < hop.seq /*within packet*/
LEFT JOIN apc_log.sessions AS session ON session.session_id = hop.session_id AND session.document ->> 'state' = 'HALTED'
WHERE hop.to_state = 'DEAD_LETTERED' /*within hop*/
  AND NOT EXISTS (
    SELECT FROM apc_log.packet_events AS later
    WHERE later.session_id = hop.session_id AND later.packet_id = hop.packet_id AND later.to_state <> ''
      AND later.shard = hop.shard AND later.seq > packet.seq /*within later*/
      AND (later.recipient = hop.recipient AND later.seq > hop.seq OR later.to_state = 'RETRACTED')
  )
  AND ($1::text IS NULL OR hop.session_id = $1)
  AND ($2::text IS NULL OR hop.recipient = $2)
  AND ($3::text IS NULL OR starts_with(hop.metadata ->> 'error', $3))
  AND ($4::uuid[] IS NULL OR hop.packet_id = ANY ($4))
  AND ($6::integer IS NULL OR (hop.shard, hop.seq) > ($6, $7))
ORDER BY hop.shard, hop.seq LIMIT $5
"""
STATES = """
SELECT DISTINCT ON (session_id, packet_id, recipient) session_id, packet_id, recipient, to_state AS state, attempt
FROM apc_log.packet_events
WHERE packet_id = ANY ($1) AND to_state <> '' AND recipient <> ''
ORDER BY session_id, packet_id, recipient, seq DESC
"""
HISTORY = """
SELECT attempt, from_state, to_state, events, occurred_at, actor, metadata FROM apc_log.packet_events
WHERE session_id = $1 AND packet_id = $2 AND recipient = $3 AND attempt >= 0
  /*within packet_events*/ ORDER BY seq
"""


_PLACES = """
SELECT given.number, ids.shard, ids.seq
FROM unnest($1::text[], $2::uuid[]) WITH ORDINALITY AS given(session_id, packet_id, number)
JOIN apc_log.packet_ids AS ids USING (session_id, packet_id)
WHERE ids.seq >= 1 /*within ids*/
"""


class DeliveryId(NamedTuple):
    """One recipient's delivery of a packet; names a session, because packet ids are unique within one."""

    session_id: str
    packet_id: UUID
    recipient: str


@dataclass(frozen=True, slots=True)
class DeadDelivery:
    """A delivery that is a dead letter. `reason` is what the log says of it: `handler_error`, `delivery_limit`,
    `overflow`, `no_route`, `retry_limit N reached: …`."""

    session_id: str
    packet_id: UUID
    recipient: str
    attempt: int
    reason: str | None
    died_at: datetime
    packet_type: str
    sender: str
    run_id: str
    task_id: str
    expires_at: datetime
    shard: int
    seq: int
    """Position of the hop that ended it."""
    halt_reason: str | None = None
    """Why its session has halted; None = it has not."""

    @property
    def id(self) -> DeliveryId:
        """Which delivery it is."""
        return DeliveryId(self.session_id, self.packet_id, self.recipient)

    @property
    def is_in_halted_session(self) -> bool:
        """Whether it is work of a session that has halted: the gate refuses all that its handler would send."""
        return self.halt_reason is not None and self.packet_type not in CONTROL_TYPES


@dataclass(frozen=True, slots=True)
class DeliveryHop:
    """One hop of a delivery."""

    attempt: int
    from_state: str
    to_state: str
    events: list[str]
    occurred_at: list[datetime]
    actor: str
    metadata: dict[str, Any]


def _of_dead(given: Given) -> Reach:
    if given["session_id"] is None and given["packet_ids"] is not None:
        return Reach(packets=given["packet_ids"])
    return Reach() if given["session_id"] is None else Reach(sessions=[given["session_id"]])


@reads(_of_dead)
async def list_dead(
    pool: asyncpg.Pool,
    *,
    session_id: str | None = None,
    recipient: str | None = None,
    reason: str | None = None,
    packet_ids: Sequence[UUID] | None = None,
    limit: int | None = None,
    after: Position | None = None,
) -> list[DeadDelivery]:
    """Return what is dead, in the order of the log, behind `after`; `reason` is how its reason begins."""
    shard, seq = after or (None, None)
    bounds = None if session_id is None else await read_range(pool, [session_id])
    given = (session_id, recipient, reason, packet_ids, limit, shard, seq)
    rows = await pool.fetch(*bounded(DEAD, bounds, *given))
    return [DeadDelivery(**row) for row in rows]


def _of_deliveries(given: Given) -> Reach:
    return Reach(sessions={one.session_id for one in given["deliveries"]})


@reads(_of_deliveries)
async def packet_places(pool: asyncpg.Pool, deliveries: Sequence[DeliveryId]) -> dict[DeliveryId, Position]:
    """Return where the packets of deliveries stand in the log."""
    sessions = [one.session_id for one in deliveries]
    bounds = await read_range(pool, sessions)
    rows = await pool.fetch(*bounded(_PLACES, bounds, sessions, [one.packet_id for one in deliveries]))
    return {deliveries[row["number"] - 1]: Position(row["shard"], row["seq"]) for row in rows}


@reads(lambda given: Reach(packets=given["packet_ids"]))
async def delivery_states(pool: asyncpg.Pool, packet_ids: Sequence[UUID]) -> dict[DeliveryId, tuple[str, int]]:
    """Return (state, attempt) of every delivery of these packets that has its own hop."""
    rows = await pool.fetch(STATES, packet_ids)
    ids = (DeliveryId(row["session_id"], row["packet_id"], row["recipient"]) for row in rows)
    return {one: (row["state"], row["attempt"]) for one, row in zip(ids, rows, strict=True)}


@reads(lambda given: Reach(sessions=[given["delivery"].session_id]))
async def delivery_history(pool: asyncpg.Pool, delivery: DeliveryId) -> list[DeliveryHop]:
    """Return the hops of one delivery, oldest first."""
    bounds = await read_range(pool, [delivery.session_id])
    rows = await pool.fetch(*bounded(HISTORY, bounds, *delivery))
    return [DeliveryHop(**dict(row) | {"metadata": orjson.loads(row["metadata"] or "{}")}) for row in rows]

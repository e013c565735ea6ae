"""What is new in the log: passages between two looks, news (`apc tail`) and refusals (`apc packet refused`)."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

import asyncpg
import orjson

from apc_log.heads import Given, LogRange, Reach, is_newest_page, read_ends, reads


@dataclass(frozen=True, slots=True)
class Passage:
    """The entries of each shard behind `after`, up to and including `until`."""

    until: Mapping[int, int]
    """shard -> its last seq, as `read_ends` returns it."""
    after: Mapping[int, int] = field(default_factory=dict)
    """shard -> the seq before its first; a shard that is missing begins at its first entry."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing between the two places."""
        return all(end <= self.after.get(shard, 0) for shard, end in self.until.items())

    @property
    def arguments(self) -> tuple[list[int], list[int], list[int]]:
        """Shards, `after` and `until` as three lists, for unnest()."""
        shards = sorted(self.until)
        return shards, [self.after.get(shard, 0) for shard in shards], [self.until[shard] for shard in shards]

    def next(self, until: Mapping[int, int]) -> Self:
        """Return the passage that follows this one."""
        return type(self)(until, self.until)


async def passages(pool: asyncpg.Pool, *, poll: timedelta, back: int | None = None) -> AsyncGenerator[Passage]:
    """Yield the log as it is now, then each time what was added, without end; look at the heads every `poll`.

    The first one holds the last `back` entries of each shard; by default all.
    """
    ends = await read_ends(pool)
    passage = Passage(ends, {} if back is None else {shard: max(0, end - back) for shard, end in ends.items()})
    yield passage
    while True:
        await asyncio.sleep(poll.total_seconds())
        passage = passage.next(await read_ends(pool))
        if not passage.is_empty:
            yield passage


# `apc tail`: what happens, one row for each entry that a person wants to see.

# The hops of a packet that goes through are left out: a delivery is news when it is tried again, dies or is refused.
_NEWS = """
SELECT found.* FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS part(shard, after, until)
CROSS JOIN LATERAL (
    (SELECT packet.shard, packet.seq, packet.judged_at AS at, packet.verdict AS what, packet.session_id,
            packet.packet_id, packet.packet_type, packet.sender_agent_id AS sender, packet.recipients,
            packet.refusal ->> 'code' AS code, packet.refusal ->> 'path' AS field,
            packet.refusal ->> 'message' AS reason, packet.refusal::text AS refusal
     FROM apc_log.agent_packets AS packet
     WHERE packet.shard = part.shard AND packet.seq > part.after AND packet.seq <= part.until
       AND ($4::text IS NULL OR packet.session_id = $4) AND ($5::text IS NULL OR packet.packet_type = $5)
       AND ($6::text IS NULL OR packet.sender_agent_id = $6 OR $6 = ANY (packet.recipients))
     ORDER BY packet.seq DESC LIMIT $8)
    UNION ALL
    (SELECT hop.shard, hop.seq, hop.recorded_at,
            CASE WHEN hop.metadata ? 'refusal' THEN 'refused' WHEN hop.to_state = 'DEAD_LETTERED' THEN 'dead letter'
                 ELSE 'retry' END,
            hop.session_id, hop.packet_id, packet.packet_type, packet.sender_agent_id,
            CASE WHEN hop.recipient = '' THEN packet.recipients ELSE ARRAY[hop.recipient] END,
            hop.metadata -> 'refusal' ->> 'code', hop.metadata -> 'refusal' ->> 'path',
            coalesce(hop.metadata -> 'refusal' ->> 'message', hop.metadata ->> 'error'),
            (hop.metadata -> 'refusal')::text
     FROM apc_log.packet_events AS hop
     JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
     JOIN apc_log.agent_packets AS packet ON packet.shard = named.shard AND packet.seq = named.seq
     WHERE hop.shard = part.shard AND hop.seq > part.after AND hop.seq <= part.until
       AND (hop.to_state = 'DEAD_LETTERED' OR hop.metadata ? 'retry'
            OR hop.metadata ? 'refusal' AND packet.verdict = 'held')
       AND ($4::text IS NULL OR hop.session_id = $4) AND ($5::text IS NULL OR packet.packet_type = $5)
       AND ($6::text IS NULL OR packet.sender_agent_id = $6 OR hop.recipient = $6)
     ORDER BY hop.seq DESC LIMIT $8)
    UNION ALL
    (SELECT moved.shard, moved.seq, moved.recorded_at, 'session', moved.session_id, moved.cause_packet_id, NULL, NULL,
            '{}', NULL, NULL, moved.event || ': ' || moved.from_state || ' → ' || moved.to_state || ', round '
            || moved.round || ', generation ' || moved.generation, NULL
     FROM apc_log.coordination_events AS moved
     WHERE moved.shard = part.shard AND moved.seq > part.after AND moved.seq <= part.until
       AND ($4::text IS NULL OR moved.session_id = $4) AND $5::text IS NULL AND $6::text IS NULL
     ORDER BY moved.seq DESC LIMIT $8)
    UNION ALL
    (SELECT one.shard, one.seq, one.recorded_at, one.kind, one.session_id, one.packet_id, NULL, one.user_id, '{}',
            one.code, NULL, one.reason, NULL
     FROM apc_log.packet_conflicts AS one
     WHERE one.shard = part.shard AND one.seq > part.after AND one.seq <= part.until
       AND ($4::text IS NULL OR one.session_id = $4) AND $5::text IS NULL AND ($6::text IS NULL OR one.user_id = $7)
     ORDER BY one.seq DESC LIMIT $8)
) AS found
ORDER BY found.at DESC, found.shard DESC, found.seq DESC LIMIT $8
"""
_USER = "SELECT broker_user FROM apc_log.agents WHERE agent_id = $1"


@dataclass(frozen=True, slots=True)
class NewsRow:
    """A packet with its verdict, a delivery in trouble, a step of a session, or a conflict."""

    shard: int
    seq: int
    at: datetime
    what: str
    """`accepted`, `held`, `refused`, `retry`, `dead letter`, `session`, or the kind of a conflict."""
    session_id: str | None
    packet_id: UUID | None
    """Of a step of a session: the packet that caused it."""
    packet_type: str | None
    sender: str | None
    """Of a conflict: the broker's user."""
    recipients: list[str]
    code: str | None
    field: str | None
    reason: str | None
    refusal: dict[str, Any] | None
    """The refusal's document; a team's rule adds `requires`, `values` and `remedy`."""


def _of_passage(given: Given) -> Reach:
    if given.get("session_id") is not None:
        return Reach(sessions=[given["session_id"]])
    parts = zip(*given["passage"].arguments, strict=True)
    return Reach(ranges=[LogRange(shard, after + 1, until) for shard, after, until in parts])


@reads(_of_passage, enough=is_newest_page)
async def list_news(
    pool: asyncpg.Pool,
    passage: Passage,
    *,
    session_id: str | None = None,
    packet_type: str | None = None,
    agent_id: str | None = None,
    limit: int | None = None,
) -> list[NewsRow]:
    """Return the newest `limit` entries of a passage (all without it), oldest first.

    `agent_id` is the sender or a recipient. Steps of sessions have neither type nor agent.
    """
    user = None if agent_id is None else await pool.fetchval(_USER, agent_id)
    rows = await pool.fetch(_NEWS, *passage.arguments, session_id, packet_type, agent_id, user, limit)
    return [NewsRow(**_read(row)) for row in reversed(rows)]


# `apc packet refused`: every input that the gate or the persister did not take, newest last.

# A refused packet is a row with its verdict; a held one was refused by the hop that ended its wait; what takes no
# packet id is a conflict. Each part reads an index of few rows, from its end.
_REFUSED = """
SELECT found.* FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS part(shard, after, until)
CROSS JOIN LATERAL (
    (SELECT packet.shard, packet.seq, packet.judged_at AS at, 'refused' AS kind, false AS was_held,
            packet.refusal_code AS code,
            packet.refusal ->> 'path' AS field, packet.refusal ->> 'message' AS reason, packet.packet_id,
            packet.packet_type, packet.session_id, packet.run_id, packet.sender_agent_id AS sender, packet.user_id,
            packet.refusal::text AS refusal
     FROM apc_log.agent_packets AS packet
     WHERE packet.shard = part.shard AND packet.seq > part.after AND packet.seq <= part.until
       AND packet.verdict = 'refused'
       AND ($8 OR packet.packet_type <> 'HEARTBEAT' OR packet.refusal_code <> 'EXPIRED')
       AND ($4::text IS NULL OR packet.session_id = $4) AND ($5::text IS NULL OR packet.sender_agent_id = $5)
     ORDER BY packet.seq DESC LIMIT $7)
    UNION ALL
    (SELECT hop.shard, hop.seq, hop.recorded_at, 'refused', true, hop.metadata -> 'refusal' ->> 'code',
            hop.metadata -> 'refusal' ->> 'path', hop.metadata -> 'refusal' ->> 'message', hop.packet_id,
            packet.packet_type, packet.session_id, packet.run_id, packet.sender_agent_id, packet.user_id,
            (hop.metadata -> 'refusal')::text
     FROM apc_log.packet_events AS hop
     JOIN apc_log.packet_ids AS named ON named.session_id = hop.session_id AND named.packet_id = hop.packet_id
     JOIN apc_log.agent_packets AS packet
       ON packet.shard = named.shard AND packet.seq = named.seq AND packet.verdict = 'held'
     WHERE hop.shard = part.shard AND hop.seq > part.after AND hop.seq <= part.until
       AND hop.recipient = '' AND hop.from_state = 'SCHEMA_VALIDATED' AND hop.metadata ? 'refusal'
       AND ($4::text IS NULL OR hop.session_id = $4) AND ($5::text IS NULL OR packet.sender_agent_id = $5)
     ORDER BY hop.seq DESC LIMIT $7)
    UNION ALL
    (SELECT one.shard, one.seq, one.recorded_at, one.kind, false, one.code, NULL, one.reason, one.packet_id, NULL,
            one.session_id, NULL, NULL, one.user_id, NULL
     FROM apc_log.packet_conflicts AS one
     WHERE one.shard = part.shard AND one.seq > part.after AND one.seq <= part.until
       AND ($4::text IS NULL OR one.session_id = $4) AND ($5::text IS NULL OR one.user_id = $6)
     ORDER BY one.seq DESC LIMIT $7)
) AS found
ORDER BY found.at DESC, found.shard DESC, found.seq DESC LIMIT $7
"""
# Of the newest refusals alone: a log may have millions.
_LATE_HEARTBEATS = """
SELECT count(*) FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS part(shard, after, until)
CROSS JOIN LATERAL (
    SELECT packet.packet_type, packet.refusal_code FROM apc_log.agent_packets AS packet
    WHERE packet.shard = part.shard AND packet.seq > part.after AND packet.seq <= part.until
      AND packet.verdict = 'refused'
      AND ($4::text IS NULL OR packet.session_id = $4) AND ($5::text IS NULL OR packet.sender_agent_id = $5)
    ORDER BY packet.seq DESC LIMIT 10000
) AS newest
WHERE newest.packet_type = 'HEARTBEAT' AND newest.refusal_code = 'EXPIRED'
"""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """An input that was not taken.

    A conflict has no type, run and sender: its bytes may name anyone. `user_id` is who published it.
    """

    shard: int
    seq: int
    at: datetime
    kind: str
    """`refused`, or the kind of a conflict."""
    was_held: bool
    """Refused at a barrier or at RESUME, after it was held."""
    code: str | None
    field: str | None
    reason: str | None
    packet_id: UUID | None
    packet_type: str | None
    session_id: str | None
    run_id: str | None
    sender: str | None
    user_id: str | None
    refusal: dict[str, Any] | None
    """Its document; a team's rule adds `requires`, `values` and `remedy`. None of a conflict."""


@reads(_of_passage, enough=is_newest_page)
async def list_refused(
    pool: asyncpg.Pool,
    passage: Passage,
    *,
    session_id: str | None = None,
    agent_id: str | None = None,
    limit: int | None = None,
    with_heartbeats: bool = False,
) -> list[RefusedRow]:
    """Return the newest `limit` of a passage (all without it), oldest first; of an agent also what its user sent.

    HEARTBEATs that expired are left out unless asked for: after an outage of the orchestrator they would bury the rest.
    """
    user = None if agent_id is None else await pool.fetchval(_USER, agent_id)
    rows = await pool.fetch(_REFUSED, *passage.arguments, session_id, agent_id, user, limit, with_heartbeats)
    return [RefusedRow(**_read(row)) for row in reversed(rows)]


def _read(row: asyncpg.Record) -> dict[str, Any]:
    """Return the columns of a row, its refusal as a document."""
    refusal = row["refusal"]
    return {**row, "refusal": None if refusal is None else orjson.loads(refusal)}


@reads(_of_passage)
async def count_late_heartbeats(
    pool: asyncpg.Pool, passage: Passage, *, session_id: str | None = None, agent_id: str | None = None
) -> int:
    """Return how many of the newest 10,000 refused packets of each shard are HEARTBEATs that expired."""
    return int(await pool.fetchval(_LATE_HEARTBEATS, *passage.arguments, session_id, agent_id))

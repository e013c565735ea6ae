"""`apc tail`: what happens, one row for each entry that a person wants to see."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_log.watching.passage import Passage

# The hops of a packet that goes through are left out: a delivery is news when it is tried again, dies or is refused.
_NEWS = """
SELECT found.* FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS part(shard, after, until)
CROSS JOIN LATERAL (
    (SELECT packet.shard, packet.seq, packet.judged_at AS at, packet.verdict AS what, packet.session_id,
            packet.packet_id, packet.packet_type, packet.sender_agent_id AS sender, packet.recipients,
            packet.refusal ->> 'code' AS code, packet.refusal ->> 'path' AS field,
            packet.refusal ->> 'message' AS reason
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
            coalesce(hop.metadata -> 'refusal' ->> 'message', hop.metadata ->> 'error')
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
            || moved.round || ', generation ' || moved.generation
     FROM apc_log.coordination_events AS moved
     WHERE moved.shard = part.shard AND moved.seq > part.after AND moved.seq <= part.until
       AND ($4::text IS NULL OR moved.session_id = $4) AND $5::text IS NULL AND $6::text IS NULL
     ORDER BY moved.seq DESC LIMIT $8)
    UNION ALL
    (SELECT one.shard, one.seq, one.recorded_at, one.kind, one.session_id, one.packet_id, NULL, one.user_id, '{}',
            one.code, NULL, one.reason
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
    return [NewsRow(**row) for row in reversed(rows)]

"""`apc packet refused`: every input that the gate or the log writer did not take, newest last."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_log.watching.passage import Passage

# A refused packet is a row with its verdict; a held one was refused by the hop that ended its wait; what takes no
# packet id is a conflict. Each part reads an index of few rows, from its end.
_REFUSED = """
SELECT found.* FROM unnest($1::int[], $2::bigint[], $3::bigint[]) AS part(shard, after, until)
CROSS JOIN LATERAL (
    (SELECT packet.shard, packet.seq, packet.judged_at AS at, 'refused' AS kind, false AS was_held,
            packet.refusal_code AS code,
            packet.refusal ->> 'path' AS field, packet.refusal ->> 'message' AS reason, packet.packet_id,
            packet.packet_type, packet.session_id, packet.run_id, packet.sender_agent_id AS sender, packet.user_id
     FROM apc_log.agent_packets AS packet
     WHERE packet.shard = part.shard AND packet.seq > part.after AND packet.seq <= part.until
       AND packet.verdict = 'refused'
       AND ($8 OR packet.packet_type <> 'HEARTBEAT' OR packet.refusal_code <> 'EXPIRED')
       AND ($4::text IS NULL OR packet.session_id = $4) AND ($5::text IS NULL OR packet.sender_agent_id = $5)
     ORDER BY packet.seq DESC LIMIT $7)
    UNION ALL
    (SELECT hop.shard, hop.seq, hop.recorded_at, 'refused', true, hop.metadata -> 'refusal' ->> 'code',
            hop.metadata -> 'refusal' ->> 'path', hop.metadata -> 'refusal' ->> 'message', hop.packet_id,
            packet.packet_type, packet.session_id, packet.run_id, packet.sender_agent_id, packet.user_id
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
            one.session_id, NULL, NULL, one.user_id
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
_USER = "SELECT broker_user FROM apc_log.agents WHERE agent_id = $1"


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

    HEARTBEATs that expired are left out unless asked for: after an outage of the gate they would bury all others.
    """
    user = None if agent_id is None else await pool.fetchval(_USER, agent_id)
    rows = await pool.fetch(_REFUSED, *passage.arguments, session_id, agent_id, user, limit, with_heartbeats)
    return [RefusedRow(**row) for row in reversed(rows)]


async def count_late_heartbeats(
    pool: asyncpg.Pool, passage: Passage, *, session_id: str | None = None, agent_id: str | None = None
) -> int:
    """Return how many of the newest 10,000 refused packets of each shard are HEARTBEATs that expired."""
    return int(await pool.fetchval(_LATE_HEARTBEATS, *passage.arguments, session_id, agent_id))

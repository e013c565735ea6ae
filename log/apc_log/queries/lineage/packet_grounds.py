"""`apc packet impact --rests-on`: what a packet rests on, transitively: the reverse of its blast radius."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from apc_contracts.vocabulary import PacketType
from apc_log.queries.lineage.impact import COLUMNS, ImpactRow, find_target
from apc_log.queries.rows import PacketRow

# Each step looks up the parent and the packets that are named, and the artifacts with a hash that is named: an ARTIFACT
# refers to its own hash, so the index of `refers_to` finds it. What is refused, or of a type that rests on nothing, is
# a ground that leads no further.
GROUNDS = f"""
WITH RECURSIVE resting(shard, seq, parent_packet_id, refers_to) AS (
    SELECT packet.shard, packet.seq, packet.parent_packet_id, coalesce(packet.refers_to, '{{}}')
    FROM apc_log.agent_packets AS packet
    WHERE packet.shard = $1 AND packet.seq = $2 AND packet.verdict <> 'refused'
      AND packet.packet_type <> ALL ($4::text[])
  UNION
    SELECT found.shard, found.seq, CASE WHEN leads.further THEN found.parent_packet_id END,
           CASE WHEN leads.further THEN coalesce(found.refers_to, '{{}}') ELSE '{{}}' END
    FROM resting CROSS JOIN LATERAL (
        SELECT packet.shard, packet.seq, packet.parent_packet_id, packet.refers_to, packet.verdict, packet.packet_type
        FROM apc_log.packet_ids AS ids
        JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
        WHERE ids.session_id = $3 AND ids.packet_id = ANY (ARRAY(
            SELECT substr(name, 8)::uuid FROM unnest(resting.refers_to) AS name WHERE name ~ $5
        ) || resting.parent_packet_id)
        UNION ALL
        SELECT artifact.shard, artifact.seq, artifact.parent_packet_id, artifact.refers_to,
               artifact.verdict, artifact.packet_type
        FROM apc_log.agent_packets AS artifact
        WHERE artifact.refers_to && resting.refers_to AND artifact.defines && resting.refers_to
          AND artifact.session_id || '' = $3 AND artifact.verdict <> 'refused'
    ) AS found
    CROSS JOIN LATERAL (
        SELECT found.verdict <> 'refused' AND found.packet_type <> ALL ($4::text[]) AS further
    ) AS leads
)
SELECT DISTINCT {COLUMNS}
FROM resting
JOIN apc_log.agent_packets AS packet ON packet.shard = resting.shard AND packet.seq = resting.seq
LEFT JOIN apc_log.packet_stale AS stale
  ON stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id
WHERE (packet.shard, packet.seq) <> ($1, $2)
ORDER BY packet.shard, packet.seq
"""

NAMED_PACKET = "^packet:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""The form of a reference to a packet: other text in the bytes of a log names none, and must not fail the query."""


@dataclass(frozen=True, slots=True)
class PacketGrounds:
    """A packet, and everything that it rests on, in the order of the log."""

    packet: PacketRow
    grounds: tuple[ImpactRow, ...]


async def get_packet_grounds(
    pool: asyncpg.Pool,
    packet_id: UUID,
    *,
    session_id: str | None = None,
    rests_on_nothing: Collection[PacketType] | None = None,
) -> PacketGrounds | None:
    """Return the packets whose retraction would mark this one stale; None when the log does not hold it.

    Of several sessions that know the id the oldest is meant when none is given. `rests_on_nothing` as in section
    `retraction` of the contract; by default the packaged one's.
    """
    asked = await find_target(pool, packet_id, session_id, rests_on_nothing)
    if asked is None:
        return None
    target, types = asked
    rows = await pool.fetch(GROUNDS, target.shard, target.seq, target.session_id, types, NAMED_PACKET)
    return PacketGrounds(target, tuple(ImpactRow(**dict(row)) for row in rows))

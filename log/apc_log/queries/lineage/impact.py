"""`apc packet impact`: what rests on a packet, transitively (docs/explanation/governance.md, Retraction)."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_contracts.contract.contract import load_contract
from apc_contracts.vocabulary import PacketType
from apc_log.queries.rows import PacketRow, Position
from apc_log.queries.trace import list_agent_packets

COLUMNS = """
    packet.packet_id, packet.packet_type, packet.sender_agent_id, packet.run_phase, packet.round, packet.generation,
    packet.judged_at, packet.shard, packet.seq, stale.packet_id IS NOT NULL AS is_stale,
    EXISTS (
        SELECT FROM apc_log.packet_events AS hop
        WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
          AND hop.attempt = 0 AND hop.to_state = 'RETRACTED'
    ) AS is_retracted
"""
"""The columns of an ImpactRow, of `packet` and `stale`."""

# The session is asked for in a form that no index answers: each step is a look-up of one packet's dependents, never a
# scan of the session. `defines` travels along, for an artifact's hash leads on as its packet does; names of claims in
# it are referred to by nobody. A refused packet defines nothing, but others may name it as their parent.
IMPACT = f"""
WITH RECURSIVE shaken(packet_id, defines) AS (
    SELECT packet.packet_id, CASE WHEN packet.verdict <> 'refused' THEN packet.defines END
    FROM apc_log.agent_packets AS packet
    WHERE packet.shard = $1 AND packet.seq = $2
  UNION
    SELECT found.packet_id, found.defines FROM shaken CROSS JOIN LATERAL (
        SELECT child.packet_id, child.defines, child.session_id, child.verdict, child.packet_type
        FROM apc_log.agent_packets AS child WHERE child.parent_packet_id = shaken.packet_id
        UNION ALL
        SELECT citing.packet_id, citing.defines, citing.session_id, citing.verdict, citing.packet_type
        FROM apc_log.agent_packets AS citing
        WHERE citing.refers_to && (ARRAY['packet:' || shaken.packet_id] || coalesce(shaken.defines, '{{}}'))
    ) AS found
    WHERE found.session_id || '' = $3 AND found.verdict <> 'refused' AND found.packet_type <> ALL ($4::text[])
      AND found.packet_id IS DISTINCT FROM $5
)
SELECT {COLUMNS}
FROM shaken
JOIN apc_log.packet_ids AS ids ON ids.session_id = $3 AND ids.packet_id = shaken.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
LEFT JOIN apc_log.packet_stale AS stale
  ON stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id
WHERE (packet.shard, packet.seq) <> ($1, $2)
ORDER BY packet.shard, packet.seq
"""


@dataclass(frozen=True, slots=True)
class ImpactRow:
    """A packet that rests on another."""

    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    run_phase: str
    round: int
    generation: int
    judged_at: datetime
    shard: int
    seq: int
    is_stale: bool
    """Marked already, by this or another retraction."""
    is_retracted: bool

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class PacketImpact:
    """A packet, and everything that rests on it, in the order of the log."""

    packet: PacketRow
    resting: tuple[ImpactRow, ...]


async def get_packet_impact(
    pool: asyncpg.Pool,
    packet_id: UUID,
    *,
    session_id: str | None = None,
    rests_on_nothing: Collection[PacketType] | None = None,
    replacement: UUID | None = None,
) -> PacketImpact | None:
    """Return what a retraction of this packet would mark stale; None when the log does not hold it.

    `replacement` is the packet that would stand in its place: neither it nor what rests on it alone is marked.

    Of several sessions that know the id the oldest is meant when none is given. `rests_on_nothing` as in section
    `retraction` of the contract; by default the packaged one's.
    """
    asked = await find_target(pool, packet_id, session_id, rests_on_nothing)
    if asked is None:
        return None
    target, types = asked
    rows = await pool.fetch(IMPACT, target.shard, target.seq, target.session_id, types, replacement)
    return PacketImpact(target, tuple(ImpactRow(**dict(row)) for row in rows))


async def find_target(
    pool: asyncpg.Pool, packet_id: UUID, session_id: str | None, rests_on_nothing: Collection[PacketType] | None
) -> tuple[PacketRow, list[str]] | None:
    """Return the packet that is asked about, and the types that rest on nothing; None when the log does not hold it."""
    found = await list_agent_packets(pool, packet_id=packet_id, session_id=session_id, limit=1)
    if not found:
        return None
    types = load_contract().retraction.rests_on_nothing if rests_on_nothing is None else rests_on_nothing
    return found[0], [str(one) for one in types]

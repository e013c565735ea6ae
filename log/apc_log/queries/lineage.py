"""How packets follow from each other, transitively: what rests on one, what it rests on, what it has caused."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_contracts.contract.contract import load_contract
from apc_contracts.explanation.surroundings import StaleDecision
from apc_contracts.vocabulary import PacketType
from apc_log.heads import bounded, of_given, read_range, reads
from apc_log.queries.packets import PacketHead, PacketRow, Position, list_agent_packets

COLUMNS = """
    packet.packet_id, packet.packet_type, packet.sender_agent_id, packet.run_phase, packet.round, packet.generation,
    packet.judged_at, packet.shard, packet.seq, stale.packet_id IS NOT NULL AS is_stale,
    EXISTS (
        SELECT FROM apc_log.packet_events AS hop
        WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
          AND hop.attempt = 0 AND hop.to_state = 'RETRACTED' /*within hop*/
    ) AS is_retracted
"""
"""The columns of an ImpactRow, of `packet` and `stale`."""

# `apc packet impact`: what rests on a packet.

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
        FROM apc_log.agent_packets AS child
        WHERE child.parent_packet_id = shaken.packet_id /*within child*/
        UNION ALL
        SELECT citing.packet_id, citing.defines, citing.session_id, citing.verdict, citing.packet_type
        FROM apc_log.agent_packets AS citing
        WHERE citing.refers_to && (ARRAY['packet:' || shaken.packet_id] || coalesce(shaken.defines, '{{}}'))
          /*within citing*/
    ) AS found
    WHERE found.session_id || '' = $3 AND found.verdict <> 'refused' AND found.packet_type <> ALL ($4::text[])
      AND found.packet_id IS DISTINCT FROM $5
)
SELECT {COLUMNS}
FROM shaken
JOIN apc_log.packet_ids AS ids ON ids.session_id = $3 AND ids.packet_id = shaken.packet_id /*within ids*/
JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
LEFT JOIN apc_log.packet_stale AS stale
  ON stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id /*within stale*/
WHERE (packet.shard, packet.seq) <> ($1, $2) /*within packet*/
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


@reads(of_given)
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
    bounds = await read_range(pool, [target.session_id])
    given = (target.shard, target.seq, target.session_id, types, replacement)
    rows = await pool.fetch(*bounded(IMPACT, bounds, *given))
    return PacketImpact(target, tuple(ImpactRow(**dict(row)) for row in rows))


@reads(of_given)
async def find_target(
    pool: asyncpg.Pool, packet_id: UUID, session_id: str | None, rests_on_nothing: Collection[PacketType] | None
) -> tuple[PacketRow, list[str]] | None:
    """Return the packet that is asked about, and the types that rest on nothing; None when the log does not hold it."""
    packets = await list_agent_packets(pool, packet_id=packet_id, session_id=session_id, limit=1)
    if not packets:
        return None
    types = load_contract().retraction.rests_on_nothing if rests_on_nothing is None else rests_on_nothing
    return packets[0], [str(packet_type) for packet_type in types]


# `apc packet impact --rests-on`: what a packet rests on, transitively: the reverse of its blast radius.

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
        ) || resting.parent_packet_id) /*within ids*/ /*within packet*/
        UNION ALL
        SELECT artifact.shard, artifact.seq, artifact.parent_packet_id, artifact.refers_to,
               artifact.verdict, artifact.packet_type
        FROM apc_log.agent_packets AS artifact
        WHERE artifact.refers_to && resting.refers_to AND artifact.defines && resting.refers_to
          AND artifact.session_id || '' = $3 AND artifact.verdict <> 'refused' /*within artifact*/
    ) AS found
    CROSS JOIN LATERAL (
        SELECT found.verdict <> 'refused' AND found.packet_type <> ALL ($4::text[]) AS further
    ) AS leads
)
SELECT DISTINCT {COLUMNS}
FROM resting
JOIN apc_log.agent_packets AS packet ON packet.shard = resting.shard AND packet.seq = resting.seq
LEFT JOIN apc_log.packet_stale AS stale
  ON stale.session_id = packet.session_id AND stale.packet_id = packet.packet_id /*within stale*/
WHERE (packet.shard, packet.seq) <> ($1, $2) /*within packet*/
ORDER BY packet.shard, packet.seq
"""

NAMED_PACKET = "^packet:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
"""The form of a reference to a packet: other text in the bytes of a log names none, and must not fail the query."""


@dataclass(frozen=True, slots=True)
class PacketGrounds:
    """A packet, and everything that it rests on, in the order of the log."""

    packet: PacketRow
    grounds: tuple[ImpactRow, ...]


@reads(of_given)
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
    bounds = await read_range(pool, [target.session_id])
    given = (target.shard, target.seq, target.session_id, types, NAMED_PACKET)
    rows = await pool.fetch(*bounded(GROUNDS, bounds, *given))
    return PacketGrounds(target, tuple(ImpactRow(**dict(row)) for row in rows))


# `apc packet tree`: what a packet has caused, packet under packet.

_COLUMNS = """
shard, seq, session_id, packet_id, packet_type, sender_agent_id, recipients, run_phase, generation, verdict,
refusal_code, judged_at
"""
_ROOT = f"""
SELECT {_COLUMNS} FROM apc_log.agent_packets
WHERE (shard, seq) IN (SELECT shard, seq FROM apc_log.packet_ids WHERE packet_id = $1)
  AND ($2::text IS NULL OR session_id = $2)
ORDER BY shard, seq LIMIT 1
"""
# A packet stands under its cause; one that names none, as the orchestrator's do, under its parent.
_CHILDREN = f"""
SELECT above.packet_id AS above, child.* FROM unnest($2::uuid[]) AS above(packet_id)
CROSS JOIN LATERAL (
    SELECT 'cause' AS edge, {_COLUMNS} FROM apc_log.agent_packets
    WHERE cause_packet_id = above.packet_id AND session_id = $1 /*within agent_packets*/
    UNION ALL
    SELECT 'parent' AS edge, {_COLUMNS} FROM apc_log.agent_packets
    WHERE parent_packet_id = above.packet_id AND cause_packet_id IS NULL AND session_id = $1
      /*within agent_packets*/
) AS child
ORDER BY child.shard, child.seq LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class TreeRow(PacketHead):
    """A packet in a causal tree. `above` is the packet it stands under, None for the root; `edge` says why: `cause`
    or `parent`."""

    above: UUID | None = None
    edge: str | None = None


@dataclass(frozen=True, slots=True)
class PacketTree:
    """A causal tree: the root first, every packet after the one it stands under."""

    rows: tuple[TreeRow, ...]
    is_cut: bool
    """There is more than was asked for."""


@reads(of_given)
async def get_packet_tree(
    pool: asyncpg.Pool, packet_id: UUID, *, session_id: str | None = None, limit: int = 500
) -> PacketTree | None:
    """Return the packets that follow from this one, level by level, at most `limit`.

    None when the log does not hold it.
    """
    record = await pool.fetchrow(_ROOT, packet_id, session_id)
    if record is None:
        return None
    rows = [TreeRow(**record)]
    seen, level = {packet_id}, [packet_id]
    bounds = await read_range(pool, [rows[0].session_id])
    while level:
        # One more than may be shown tells whether there is more; a packet that is its own ancestor is shown once.
        given = (rows[0].session_id, level, limit - len(rows) + 1)
        records = await pool.fetch(*bounded(_CHILDREN, bounds, *given))
        children = [TreeRow(**child) for child in records if child["packet_id"] not in seen]
        if len(rows) + len(children) > limit:
            return PacketTree((*rows, *children[: limit - len(rows)]), is_cut=True)
        rows += children
        level = [row.packet_id for row in children]
        seen.update(level)
    return PacketTree(tuple(rows), is_cut=False)


# Decisions that rest on a retracted packet, for the readers of a result.

_STALE = """
SELECT packet.packet_id, packet.sender_agent_id AS sender, ground.packet_id AS ground_id,
       ground.packet_type AS ground_type, ground.sender_agent_id AS ground_sender,
       stale.retraction_packet_id AS retraction_id
FROM apc_log.packet_stale AS stale
JOIN apc_log.packet_ids AS decided
  ON decided.session_id = stale.session_id AND decided.packet_id = stale.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = decided.shard AND packet.seq = decided.seq
JOIN apc_log.packet_ids AS rested
  ON rested.session_id = stale.session_id AND rested.packet_id = stale.because_packet_id
JOIN apc_log.agent_packets AS ground ON ground.shard = rested.shard AND ground.seq = rested.seq
WHERE stale.session_id = $1 AND packet.packet_type = 'DECISION' AND ($2::uuid IS NULL OR packet.packet_id = $2)
  /*within stale*/ /*within decided*/ /*within packet*/ /*within rested*/ /*within ground*/
ORDER BY packet.seq DESC LIMIT $3
"""
_MOST_DECISIONS = 5


@reads(of_given)
async def list_stale_decisions(
    pool: asyncpg.Pool, session_id: str, *, packet_id: UUID | None = None, limit: int = _MOST_DECISIONS
) -> tuple[StaleDecision, ...]:
    """Return the DECISIONs of a session, or the one with this id, that are stale; newest first."""
    bounds = await read_range(pool, [session_id])
    rows = await pool.fetch(*bounded(_STALE, bounds, session_id, packet_id, limit))
    return tuple(StaleDecision(**row) for row in rows)

"""`apc packet tree`: what a packet has caused, packet under packet."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

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
    WHERE cause_packet_id = above.packet_id AND session_id = $1
    UNION ALL
    SELECT 'parent' AS edge, {_COLUMNS} FROM apc_log.agent_packets
    WHERE parent_packet_id = above.packet_id AND cause_packet_id IS NULL AND session_id = $1
) AS child
ORDER BY child.shard, child.seq LIMIT $3
"""


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A packet in a causal tree. `above` is the packet it stands under, None for the root; `edge` says why: `cause`
    or `parent`."""

    shard: int
    seq: int
    session_id: str
    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    recipients: list[str]
    run_phase: str
    generation: int
    verdict: str
    refusal_code: str | None
    judged_at: datetime
    above: UUID | None = None
    edge: str | None = None


@dataclass(frozen=True, slots=True)
class PacketTree:
    """A causal tree: the root first, every packet after the one it stands under."""

    rows: tuple[TreeRow, ...]
    is_cut: bool
    """There is more than was asked for."""


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
    while level:
        # One more than may be shown tells whether there is more; a packet that is its own ancestor is shown once.
        records = await pool.fetch(_CHILDREN, rows[0].session_id, level, limit - len(rows) + 1)
        found = [TreeRow(**one) for one in records if one["packet_id"] not in seen]
        if len(rows) + len(found) > limit:
            return PacketTree((*rows, *found[: limit - len(rows)]), is_cut=True)
        rows += found
        level = [row.packet_id for row in found]
        seen.update(level)
    return PacketTree(tuple(rows), is_cut=False)

"""Which swarms and protocols the candidates of arbitrations come from."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

_ORIGINS = """
SELECT wanted.packet_id, packet.sender_swarm_id, block.protocol_id
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_ids AS ids ON ids.session_id = wanted.session_id AND ids.packet_id = wanted.packet_id
JOIN apc_log.agent_packets AS packet ON packet.shard = ids.shard AND packet.seq = ids.seq
LEFT JOIN apc_log.packet_lineage AS block
  ON block.session_id = wanted.session_id AND block.packet_id = wanted.packet_id
"""


@dataclass(frozen=True, slots=True)
class CandidateOrigin:
    """Where a candidate comes from."""

    swarm: str
    protocol_id: str | None


async def candidate_origins(pool: asyncpg.Pool, wanted: Sequence[tuple[str, UUID]]) -> dict[UUID, CandidateOrigin]:
    """Return the origin of each packet, given as (session_id, packet_id); unknown ones are left out."""
    rows = await pool.fetch(_ORIGINS, [session for session, _ in wanted], [packet for _, packet in wanted])
    return {row["packet_id"]: CandidateOrigin(row["sender_swarm_id"], row["protocol_id"]) for row in rows}

"""The conflicts of a session or of a packet id."""

from uuid import UUID

import asyncpg

from apc_log.queries.rows import ConflictRow
from apc_log.queries.statements import columns, to_row

_COLUMNS = columns(ConflictRow, "one")
_OF_SESSION = f"""
SELECT {_COLUMNS} FROM apc_log.packet_conflicts AS one
WHERE one.session_id = $1 AND ($2::uuid IS NULL OR one.packet_id = $2) ORDER BY one.shard, one.seq LIMIT $3
"""
_OF_PACKET = f"""
SELECT {_COLUMNS} FROM apc_log.packet_conflicts AS one
WHERE one.packet_id = $1 ORDER BY one.shard, one.seq LIMIT $2
"""


async def list_conflicts(
    pool: asyncpg.Pool, *, session_id: str | None, packet_id: UUID | None, limit: int
) -> list[ConflictRow]:
    """Return the first conflicts of a session, of a packet id, or of both; nothing when neither is given."""
    if session_id is not None:
        rows = await pool.fetch(_OF_SESSION, session_id, packet_id, limit)
    elif packet_id is not None:
        rows = await pool.fetch(_OF_PACKET, packet_id, limit)
    else:
        rows = []
    return [to_row(ConflictRow, row) for row in rows]

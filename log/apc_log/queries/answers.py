"""Whether the log holds a packet, and the gate's verdict on it."""

from collections.abc import Sequence
from uuid import UUID

import asyncpg

_IS_KNOWN = "SELECT EXISTS (SELECT FROM apc_log.agent_packets WHERE packet_id = $1)"
_VERDICTS = """
SELECT verdict, refusal ->> 'code' AS code, refusal ->> 'path' AS path, refusal ->> 'message' AS message
FROM apc_log.agent_packets WHERE session_id = $1 AND packet_id = $2 AND sender_agent_id = $3
UNION ALL
SELECT 'refused', code, NULL, reason FROM apc_log.packet_conflicts
WHERE packet_id = $2 AND kind = 'refused' AND user_id = $4
"""


async def is_logged(pool: asyncpg.Pool, packet_id: UUID) -> bool:
    """Return whether the log holds a packet of this id, in any session."""
    return bool(await pool.fetchval(_IS_KNOWN, packet_id))


async def read_verdicts(
    pool: asyncpg.Pool, session_id: str, packet_id: UUID, sender: str, user: str
) -> Sequence[asyncpg.Record]:
    """Return `verdict`, `code`, `path` and `message` of a packet; nothing while it is not judged.

    Args:
        sender: its agent_id.
        user: the broker user who published it. What others published under this packet_id is no answer to it.
    """
    return await pool.fetch(_VERDICTS, session_id, packet_id, sender, user)

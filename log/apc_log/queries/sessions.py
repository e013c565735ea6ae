"""Sessions as the projection has them: their state documents, and the packets that they hold."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from apc_contracts.session import SessionDocument, decode_document

_COLUMNS = "session_id, open_deliveries, updated_at, is_terminal, document"
_LISTED = f"""
SELECT {_COLUMNS} FROM apc_log.sessions
WHERE ($1::text IS NULL OR run_id = $1) AND (NOT $2 OR NOT is_terminal)
ORDER BY updated_at DESC, session_id LIMIT $3
"""
_ONE = f"SELECT {_COLUMNS} FROM apc_log.sessions WHERE session_id = $1"
_HELD = """
SELECT packet_id, packet_type, sender_agent_id, judged_at FROM apc_log.agent_packets AS packet
WHERE session_id = $1 AND verdict = 'held' AND NOT EXISTS (
    SELECT FROM apc_log.packet_events AS hop
    WHERE hop.session_id = packet.session_id AND hop.packet_id = packet.packet_id AND hop.recipient = ''
      AND (hop.from_state = 'SCHEMA_VALIDATED' OR hop.to_state = 'RETRACTED')
)
ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session after its last batch."""

    session_id: str
    open_deliveries: int
    updated_at: datetime
    is_terminal: bool
    document: SessionDocument


@dataclass(frozen=True, slots=True)
class HeldRow:
    """A packet that was logged as held, and not judged since."""

    packet_id: UUID
    packet_type: str
    sender_agent_id: str
    judged_at: datetime


async def list_sessions(
    pool: asyncpg.Pool, *, run_id: str | None = None, only_running: bool = False, limit: int = 100
) -> list[SessionRow]:
    """Return the sessions that changed last first. Raises msgspec.ValidationError on a document of another version."""
    return [_session(record) for record in await pool.fetch(_LISTED, run_id, only_running, limit)]


async def get_session(pool: asyncpg.Pool, session_id: str) -> SessionRow | None:
    """Return a session; None if the log has none of that name."""
    record = await pool.fetchrow(_ONE, session_id)
    return None if record is None else _session(record)


async def list_held_packets(pool: asyncpg.Pool, session_id: str) -> list[HeldRow]:
    """Return what a session holds, until its barrier or until RESUME, in the order of the log."""
    return [HeldRow(**record) for record in await pool.fetch(_HELD, session_id)]


def _session(record: asyncpg.Record) -> SessionRow:
    fields = dict(record)
    return SessionRow(**fields | {"document": decode_document(fields["document"])})

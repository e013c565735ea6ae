"""Destroys a subject's key: its texts are then permanently unreadable, and every proof of the log still holds."""

from dataclasses import dataclass
from uuid import UUID

from apc_log.body_encryption import MARK
from apc_log.connection import AnyConnection
from apc_persister.encryption import UNATTRIBUTED
from apc_persister.errors import SubjectUnknown

_LOCK_HEADS = "SELECT FROM apc_log.shards ORDER BY shard FOR UPDATE"
_FIND = "SELECT key_id FROM apc_keys.subject_keys WHERE subject = $1"
_DESTROY = "DELETE FROM apc_keys.subject_keys WHERE subject = ANY($1::text[]) RETURNING key_id"
_RECORD = "SELECT apc_guard.record_erasure($1)"
# Names that a session compares come from payloads. Its document is a projection, no row of the log.
_FORGET = """
UPDATE apc_log.sessions SET document = document - 'briefs' - 'symbolic_keys' WHERE session_id IN (
    SELECT session_id FROM apc_log.agent_packets WHERE substring(body_stored FROM 1 FOR $2) = ANY($1::bytea[])
) AND is_terminal
"""


@dataclass(frozen=True, slots=True)
class Erased:
    """What an erasure did."""

    key_ids: tuple[UUID, ...]
    """The destroyed keys: the subject's, and the one of what cannot be attributed."""
    is_swept: bool
    """The freed bytes of the key table were given back; else a VACUUM FULL of it is still to be done."""


async def erase_subject(connection: AnyConnection, subject: str) -> Erased:
    """Destroy the key of a subject, and record it in the log of every shard, which names keys and not the subject.

    The user needs the rights of apc_owner. Writers wait meanwhile; a packet that comes later gets a new key.

    Raises:
        SubjectUnknown: there is no key of that subject: nothing of it is in the log, or it is not encrypted.
    """
    async with connection.transaction():
        await connection.execute(_LOCK_HEADS)  # in the writers' order: their heads before their subjects' keys
        if await connection.fetchval(_FIND, subject) is None:
            raise SubjectUnknown(subject)
        gone = [row[0] for row in await connection.fetch(_DESTROY, [subject, UNATTRIBUTED])]
        await connection.execute(_RECORD, gone)
        marks = [MARK + key_id.bytes for key_id in gone]
        await connection.execute(_FORGET, marks, len(marks[0]))
    return Erased(tuple(gone), await _sweep(connection))


async def _sweep(connection: AnyConnection) -> bool:
    """Rewrite the table: a deleted row's bytes would stay in its page. The server answers a lack of rights by a
    warning, so they are asked for."""
    if not await connection.fetchval(
        "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'apc_keys.subject_keys'::regclass"
    ):
        return False
    await connection.execute("VACUUM FULL apc_keys.subject_keys")
    await connection.execute("VACUUM apc_log.sessions")
    return True

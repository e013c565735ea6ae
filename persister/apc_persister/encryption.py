"""Encrypts what came of a packet's text before the log takes it, and erases it by destroying a subject's key.

Bodies, hashes, refusals and free text of hops are encrypted: under the subject's key what can be attributed to a
subject; the rest (bytes that are no packet, a batch of an orchestrator that had lost its shard) under one shared key,
which is destroyed with every subject's.
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from uuid import UUID

import orjson
from msgspec.structs import replace

from apc_bus.settings import EncryptionSettings
from apc_log.batch import ConflictEntry, Entry, HopEntry, LineageEntry, PacketEntry
from apc_log.body_encryption import MARK, KeyRing, SealedContent, SubjectKey, require
from apc_log.entries import Placed
from apc_log.heads import AnyConnection
from apc_persister.errors import SubjectUnknown
from apc_persister.intake import UNSTORABLE, unstorable

UNATTRIBUTED = ""
"""The subject of what cannot be attributed."""
HIDDEN = "(encrypted)"
_FREE_TEXT = frozenset({"error", "warning", "message", "path", "reason"})
_CONTRACT_TEXT = frozenset({"requires", "remedy"})
"""Fields of a refusal that the contract gives, never a packet."""
_LONGEST_WORD = 200


class Encryption:
    """Encrypts the entries of a writer's transaction."""

    def __init__(self, ring: KeyRing, subject_field: str | None) -> None:
        self._ring = ring
        self._subject_field = subject_field

    @classmethod
    def of(cls, settings: EncryptionSettings) -> "Encryption | None":
        """Return what these settings ask for; None = bodies are stored as they came."""
        if not settings.encrypt_bodies:
            return None
        return cls(require(KeyRing.of(settings)), settings.subject_field)

    async def apply(self, connection: AnyConnection, placed: list[Placed]) -> None:
        """Replace every entry that holds text of a packet by one that holds it encrypted, at its place.

        Raises BodyUnreadable when the subjects' keys were wrapped by another master key.
        """
        subjects = [self._subject_of(item.entry) for item in placed]
        wanted = {subject for subject in subjects if subject is not None}
        keys = await self._ring.of_subjects(connection, wanted) if wanted else {}
        for at, (item, subject) in enumerate(zip(placed, subjects, strict=True)):
            sealed = _without_text(item.entry) if subject is None else _sealed(item.entry, keys[subject])
            placed[at] = item._replace(entry=sealed)

    def _subject_of(self, entry: Entry) -> str | None:
        """Return the subject whose key is needed; None if there is nothing to encrypt."""
        match entry:
            case PacketEntry():
                named = None if self._subject_field is None else self._named_in(_read(entry.body))
                return named or entry.sender_agent_id
            case ConflictEntry():
                packet = _read(entry.raw)
                sender = packet.get("sender")
                by_sender = sender.get("agent_id") if isinstance(sender, dict) else None
                subject = self._named_in(packet) or by_sender
                return subject if isinstance(subject, str) and "\0" not in subject else UNATTRIBUTED
        return None

    def _named_in(self, packet: dict[str, Any]) -> str | None:
        metadata = packet.get("metadata")
        if self._subject_field is None or not isinstance(metadata, dict):
            return None
        named = metadata.get(self._subject_field)
        return named if isinstance(named, str) and named else None


def _read(body: bytes) -> dict[str, Any]:
    try:
        packet = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return packet if isinstance(packet, dict) else {}


def _sealed(entry: Entry, key: SubjectKey) -> Entry:
    match entry:
        case PacketEntry() if sha256(entry.body).digest() == entry.packet_hash:
            return _sealed_packet(entry, key)
        case PacketEntry():
            # In the clear the table's CHECK would say so.
            error = ValueError("the body does not fit its packet_hash")
            return _sealed_conflict(unstorable(entry, UNSTORABLE, error), key)
        case ConflictEntry():
            return _sealed_conflict(entry, key)
    return entry


def _sealed_packet(entry: PacketEntry, key: SubjectKey) -> PacketEntry:
    content = SealedContent(entry.body, entry.packet_hash, entry.payload_hash, entry.signature, entry.refusal)
    return replace(
        entry,
        body=key.seal_packet(content),
        packet_hash=key.digest(entry.packet_hash),
        payload_hash=key.digest(entry.payload_hash),
        signature=None,  # anyone who guesses the text could try it
        refusal=None if entry.refusal is None else _hidden(entry.refusal),
        facts=_hidden(entry.facts),
    )


def _sealed_conflict(entry: ConflictEntry, key: SubjectKey) -> ConflictEntry:
    first, second = entry.first_hash, entry.second_hash
    return replace(
        entry,
        reason=HIDDEN,
        raw=key.seal(orjson.dumps(entry.reason) + b"\n" + entry.raw),
        first_hash=None if first is None else key.digest(first),
        second_hash=None if second is None else key.digest(second),
    )


def _without_text(entry: Entry) -> Entry:
    match entry:
        case HopEntry() if entry.metadata is not None:
            return replace(entry, metadata=_hidden(entry.metadata))
        case LineageEntry():
            # These four are of the payload; the rest is the packet's own lineage block.
            return replace(entry, from_swarm=None, to_swarm=None, sender_score=None, receiver_score=None)
    return entry


def _hidden(document: bytes) -> bytes:
    return orjson.dumps(_hide(orjson.loads(document), ""))


def _hide(value: Any, key: str) -> Any:
    """Encrypt free text, which may quote a packet; names have no blanks and are short."""
    match value:
        case dict() if key == "values":  # what a rule has read of the content
            return dict.fromkeys(value, HIDDEN)
        case dict() if key == "effect":  # its key is a name: the gate, rules and workers compare it
            return {name: item if name == "key" else _hide(item, name) for name, item in value.items()}
        case dict():
            return {name: _hide(item, name) for name, item in value.items()}
        case list():
            return [_hide(item, key) for item in value]
        case str() if key in _CONTRACT_TEXT:
            return value
        case str() if key in _FREE_TEXT or len(value) > _LONGEST_WORD or any(map(str.isspace, value)):
            return HIDDEN
    return value


# Destroys a subject's key: its texts are then permanently unreadable, and every proof of the log still holds.

_LOCK_HEADS = "SELECT FROM apc_log.shards ORDER BY shard FOR UPDATE"
_FIND = "SELECT key_id FROM apc_keys.subject_keys WHERE subject = $1"
_DESTROY = "DELETE FROM apc_keys.subject_keys WHERE subject = ANY($1::text[]) RETURNING key_id"
_RECORD = "SELECT apc_guard.record_erasure($1)"
# What the follower is adding now must not come back after the rows are gone: its piece ends first.
_HOLD_FOLLOWER = "SELECT FROM apc_log.followed WHERE projection = 'packet_search' FOR UPDATE"
_UNLIST = "DELETE FROM apc_log.packet_search WHERE key_id = ANY($1::uuid[])"
# Names that a session compares come from payloads. Its document is a projection, no row of the log.
_FORGET = """
UPDATE apc_log.sessions SET document = document - 'briefs' - 'symbolic_keys' - 'counters' WHERE session_id IN (
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
        await connection.execute(_HOLD_FOLLOWER)
        await connection.execute(_UNLIST, gone)
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

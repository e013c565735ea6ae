"""Rows of packet_conflicts that the writer itself makes; each stands at the place of the entry that it
replaces."""

from hashlib import sha256

import msgspec

from apc_log.batch import ConflictEntry, Entry, PacketEntry, SessionUpdate

DUPLICATE_ID = "duplicate_id"
"""The packet's id is in the log already: the first row stands."""
DUPLICATE_EVENT = "duplicate_event"
"""A hop, lineage block, transition or registry change that the log has already."""
UNSTORABLE = "unstorable"
"""PostgreSQL refused the entry, for example a NUL in a text; `raw` is its MessagePack."""
FENCED = "fenced"
"""A batch of a gate that had lost its shard; `raw` is the message."""
UNREADABLE = "unreadable"
"""A message of the log queue that is no batch; `raw` is its body."""

_MAX_REASON = 500


def duplicate_id(entry: PacketEntry, first_hash: bytes) -> ConflictEntry:
    """Build the entry that replaces a packet whose id is known."""
    same = "the same content" if first_hash == entry.packet_hash else "other content"
    return ConflictEntry(
        session_id=entry.session_id,
        packet_id=entry.packet_id,
        kind=DUPLICATE_ID,
        code=None,
        reason=f"the id is in the log already, with {same}",
        raw=entry.body,
        first_hash=first_hash,
        second_hash=entry.packet_hash,
        user_id=entry.user_id,
    )


def unstorable(entry: Entry | SessionUpdate, kind: str, error: Exception) -> ConflictEntry:
    """Build the entry that replaces one that cannot be stored. Its texts may be the culprit: they stay inside `raw`."""
    raw = msgspec.msgpack.Encoder(uuid_format="bytes").encode(entry)
    reason = f"{type(error).__name__}: {error}".replace("\0", "\\0")
    return ConflictEntry(
        session_id=None,
        packet_id=getattr(entry, "packet_id", None),
        kind=kind,
        code=None,
        reason=reason[:_MAX_REASON],
        raw=raw,
        first_hash=None,
        second_hash=sha256(raw).digest(),
        user_id=None,
    )


def whole_message(kind: str, reason: str, body: bytes) -> ConflictEntry:
    """Build the entry for a message of which no entry was taken."""
    return ConflictEntry(
        session_id=None,
        packet_id=None,
        kind=kind,
        code=None,
        reason=reason[:_MAX_REASON],
        raw=body,
        first_hash=None,
        second_hash=sha256(body).digest(),
        user_id=None,
    )

"""The segments of the log: room for what is written, and what an earlier segment has already.

The entries of a shard stand in segments, one behind the other (migrations/sql/0122_segments.sql). A unique index of a
divided table holds within one of them. So the writer looks, under the lock on the head of the shard, into the range of
the log that the sessions of a transaction stand in: nobody else adds to it meanwhile.
"""

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass
from itertools import count
from uuid import UUID

from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.batch import CoordinationEntry, Entry, HopEntry, LineageEntry, PacketEntry
from apc_log.entries import Placed
from apc_log.heads import AnyConnection
from apc_persister.intake import DUPLICATE_EVENT, duplicate_id, unstorable

AHEAD = 4
"""Segments that are kept open behind the one that is written to, once a log has YOUNG entries."""
YOUNG = 32_768
"""A log with fewer entries has one segment: most never have more."""
_IN_SEGMENT = """
SELECT first_seq FROM apc_guard.segments WHERE shard = $1 AND first_seq <= $2 AND last_seq >= $2
"""
_OPEN = "SELECT apc_guard.open_segments($1, $2, $3)"
_UNUSED = """
SELECT shard FROM apc_log.shards WHERE next_seq > $2 AND $1 > (
    SELECT count(*) FROM apc_guard.segments WHERE segments.shard = shards.shard AND first_seq > next_seq
) ORDER BY shard
"""
_FIRST = """
SELECT min(first_seq) FROM (
    SELECT CASE WHEN shard = $1 THEN coalesce(first_seq, 0) ELSE 0 END AS first_seq
    FROM apc_log.sessions WHERE session_id = ANY($2)
    UNION ALL
    SELECT CASE WHEN shard = $1 THEN first_seq ELSE 0 END FROM apc_log.unopened_sessions WHERE session_id = ANY($2)
) AS named
"""
_IDS = """
SELECT known.session_id, known.packet_id, known.packet_hash
FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_ids AS known USING (session_id, packet_id)
WHERE known.shard = $3 AND known.seq BETWEEN $4 AND $5
"""
_HOPS = """
SELECT session_id, packet_id, recipient, attempt, to_state
FROM unnest($1::text[], $2::uuid[], $3::text[], $4::integer[], $5::text[])
    AS wanted(session_id, packet_id, recipient, attempt, to_state)
JOIN apc_log.packet_events AS known USING (session_id, packet_id, recipient, attempt, to_state)
WHERE known.shard = $6 AND known.seq BETWEEN $7 AND $8
"""
_LINEAGE = """
SELECT session_id, packet_id FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_lineage AS known USING (session_id, packet_id)
WHERE known.shard = $3 AND known.seq BETWEEN $4 AND $5
"""
_TRANSITIONS = """
SELECT session_id, step, event FROM unnest($1::text[], $2::bigint[], $3::text[]) AS wanted(session_id, step, event)
JOIN apc_log.coordination_events AS known USING (session_id, step, event)
WHERE known.shard = $4 AND known.seq BETWEEN $5 AND $6
"""

Identity = tuple[str, UUID]
"""session_id, packet_id."""
Key = tuple[object, ...]


class RepeatedError(ValueError):
    """An entry says what an entry of an earlier segment has said."""


async def open_ahead(connection: AnyConnection, most_entries: int) -> None:
    """Open segments of every shard that has fewer than AHEAD of them; one has at most so many entries."""
    for row in await connection.fetch(_UNUSED, AHEAD, YOUNG):
        await connection.fetchval(_OPEN, row["shard"], AHEAD, most_entries)


async def make_room(connection: AnyConnection, shard: int, last: int) -> int:
    """Return the first entry of the segment that entry `last` stands in; opens segments where there is none yet.

    They are open ahead, but for a shard that begins, and where nobody could open them.
    """
    last = max(last, 1)
    for ahead in count():
        first: int | None = await connection.fetchval(_IN_SEGMENT, shard, last)
        if first is not None:
            return first
        await connection.fetchval(_OPEN, shard, ahead, 0)
    raise AssertionError


@dataclass(frozen=True, slots=True)
class Written:
    """Where the log of a shard stands when a transaction begins to write."""

    shard: int
    next_seq: int
    is_bounded: bool
    """The ranges of the sessions take every entry in."""
    segment_first: int
    """The first entry of the segment that the transaction's last entry stands in."""


async def replace_repeats(
    connection: AnyConnection, log: Written, placed: list[Placed], sessions: Collection[str]
) -> bool:
    """Replace by a conflict each packet whose id the log or this list has already, and what an earlier segment has.

    `sessions` are those that the entries name, without that of presence. An entry that is repeated within the segment
    is left: its unique index refuses it. Returns whether anything was replaced.
    """
    packets = [
        (at, (item.entry.session_id, item.entry.packet_id), item.entry)
        for at, item in enumerate(placed)
        if isinstance(item.entry, PacketEntry)
    ]
    first = await _first_entry(connection, log, sessions)
    ordinary = [identity for _, identity, packet in packets if packet.session_id != PRESENCE_SESSION]
    known = await _known(connection, log.shard, ordinary, first, log.next_seq - 1)
    if len(ordinary) < len(packets):
        # The presence of agents is a session that never ends and has no range; it has few packets.
        present = [identity for _, identity, packet in packets if packet.session_id == PRESENCE_SESSION]
        known |= await _known(connection, log.shard, present, 1, log.next_seq - 1)
    repeated = 0
    for at, identity, packet in packets:
        first_hash = known.get(identity)
        if first_hash is None:
            known[identity] = packet.packet_hash
        else:
            placed[at] = placed[at]._replace(entry=duplicate_id(packet, first_hash))
            repeated += 1
    if first < log.segment_first:
        fresh = {identity for at, identity, packet in packets if placed[at].entry is packet}
        repeated += await _replace_older(connection, log, placed, fresh, first)
    return repeated > 0


async def _first_entry(connection: AnyConnection, log: Written, sessions: Collection[str]) -> int:
    """Return the first entry of the shard that names one of these sessions; the next one where none does."""
    if not sessions:
        return log.next_seq
    if not log.is_bounded:
        return 1
    names = [name for name in sessions if _is_storable((name,))]
    first: int | None = await connection.fetchval(_FIRST, log.shard, names)
    return log.next_seq if first is None else max(first, 1)


async def _known(
    connection: AnyConnection, shard: int, wanted: Collection[Identity], first: int, last: int
) -> dict[Identity, bytes]:
    """Return those of these packets that the log has from one entry to another, each with its hash."""
    asked = [identity for identity in wanted if _is_storable(identity)]
    if not asked or first > last:
        return {}
    rows = await connection.fetch(_IDS, *_columns(asked), shard, first, last)
    return {(row["session_id"], row["packet_id"]): row["packet_hash"] for row in rows}


async def _replace_older(
    connection: AnyConnection, log: Written, placed: list[Placed], fresh: Set[Identity], first: int
) -> int:
    """Look into the segments before the one that is written to; return how many entries were replaced.

    What is about a packet of this transaction, or of that segment, cannot be there.
    """
    about = [item.entry for item in placed if isinstance(item.entry, HopEntry | LineageEntry)]
    packets = {_identity(entry) for entry in about} - fresh
    packets -= (await _known(connection, log.shard, packets, log.segment_first, log.next_seq - 1)).keys()
    wanted: dict[str, list[Key]] = {_HOPS: [], _LINEAGE: [], _TRANSITIONS: []}
    for item in placed:
        match item.entry:
            case HopEntry() if _identity(item.entry) in packets:
                wanted[_HOPS].append(_key(item.entry))
            case LineageEntry() if _identity(item.entry) in packets:
                wanted[_LINEAGE].append(_key(item.entry))
            case CoordinationEntry():
                wanted[_TRANSITIONS].append(_key(item.entry))
    repeated: set[Key] = set()
    for statement, keys in wanted.items():
        asked = [key for key in keys if _is_storable(key)]
        if asked:
            rows = await connection.fetch(statement, *_columns(asked), log.shard, first, log.segment_first - 1)
            repeated.update(map(tuple, rows))
    found = [at for at, item in enumerate(placed) if _key(item.entry) in repeated] if repeated else []
    for at in found:
        error = RepeatedError("an earlier segment of the log has this entry")
        placed[at] = placed[at]._replace(entry=unstorable(placed[at].entry, DUPLICATE_EVENT, error))
    return len(found)


def _identity(entry: PacketEntry | HopEntry | LineageEntry) -> Identity:
    return entry.session_id, entry.packet_id


def _key(entry: Entry) -> Key:
    """Return what the unique index of a segment holds of an entry; nothing of one that stands in none."""
    match entry:
        case HopEntry():
            return entry.session_id, entry.packet_id, entry.recipient, entry.attempt, entry.to_state
        case LineageEntry():
            return _identity(entry)
        case CoordinationEntry():
            return entry.session_id, entry.step, entry.event
    return ()


def _is_storable(key: Key) -> bool:
    """The log has nothing with a U+0000, which is no text of the database: to ask for it fails."""
    return not any(isinstance(part, str) and "\0" in part for part in key)


def _columns(rows: Iterable[Key]) -> Iterable[list[object]]:
    return map(list, zip(*rows, strict=True))

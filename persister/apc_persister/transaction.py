"""One transaction of the writer: messages in, rows and the moved head out, or nothing at all."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from uuid import UUID

import asyncpg
from msgspec.structs import astuple

from apc_bus.concurrency import reason_of
from apc_bus.crash_points import crash_point
from apc_bus.database import DATABASE_AWAY
from apc_bus.telemetry import get_logger
from apc_contracts.vocabulary import PRESENCE_SESSION, PacketType
from apc_log.batch import (
    CoordinationEntry,
    Entry,
    EpochOpen,
    HopEntry,
    LineageEntry,
    LogBatch,
    PacketEntry,
    SessionUpdate,
    SignsOfLifeReport,
)
from apc_log.entries import Placed, Rows, leaves_of, rows_of
from apc_log.heads import AnyConnection
from apc_log.merkle import Tree
from apc_persister.encryption import Encryption
from apc_persister.errors import LogStopped
from apc_persister.evidence.tree import TreeSigner, attest_each
from apc_persister.intake import (
    DUPLICATE_EVENT,
    UNSTORABLE,
    BatchIntake,
    Epoch,
    Head,
    Received,
    check_changes,
    duplicate_id,
    unstorable,
    with_checked_changes,
)

# The head of a shard in the database: taken under lock at the start of a transaction, moved at its end.

_LOCK = """
SELECT epoch, holder, batch_no, next_seq, bounded_seq, now() AS now FROM apc_log.shards WHERE shard = $1 FOR UPDATE
"""
_LOCK_FREE = """
SELECT shard, epoch, holder, batch_no, next_seq, bounded_seq, now() AS now FROM apc_log.shards WHERE shard = ANY($1)
ORDER BY shard FOR UPDATE SKIP LOCKED
"""
_CREATE = """
INSERT INTO apc_log.shards (shard, epoch, holder, batch_no, next_seq)
VALUES ($1, 0, NULL, 0, 1) ON CONFLICT (shard) DO NOTHING
"""
_EPOCHS = """
SELECT epoch, holder, mark_epoch, mark_batch_no FROM apc_log.shard_epochs
WHERE shard = $1 AND (holder = ANY($2::uuid[]) OR mark_epoch = ANY($3::bigint[]))
"""
_OPEN = """
INSERT INTO apc_log.shard_epochs (shard, epoch, holder, mark_epoch, mark_batch_no, orchestrator)
VALUES ($1, $2, $3, $4, $5, $6)
"""
_MOVE = """
UPDATE apc_log.shards SET epoch = $2, holder = $3, batch_no = $4, next_seq = $5, bounded_seq = $6 WHERE shard = $1
"""
_KEEP_CONTRACT = """
INSERT INTO apc_log.contracts (contract_hash, document) VALUES (sha256($1), $1) ON CONFLICT DO NOTHING
"""


async def lock_head(connection: AnyConnection, shard: int) -> tuple[Head, datetime]:
    """Return the head, locked until the transaction ends, and the transaction's time."""
    row = await connection.fetchrow(_LOCK, shard)
    if row is None:
        await connection.execute(_CREATE, shard)
        row = await connection.fetchrow(_LOCK, shard)
        assert row is not None
    return _head_of(shard, row), row["now"]


async def lock_free_heads(connection: AnyConnection, shards: Sequence[int]) -> dict[int, tuple[Head, datetime]]:
    """Lock the heads that are there and that nobody else has locked; waits for none. Returns what `lock_head` does."""
    rows = await connection.fetch(_LOCK_FREE, shards)
    return {row["shard"]: (_head_of(row["shard"], row), row["now"]) for row in rows}


def _head_of(shard: int, row: asyncpg.Record) -> Head:
    return Head(shard, row["epoch"], row["holder"], row["batch_no"], row["next_seq"], row["bounded_seq"])


async def begin_intake(connection: AnyConnection, head: Head, messages: Sequence[Received]) -> BatchIntake:
    """Return an empty intake that knows the earlier epochs which these messages ask for."""
    holders = [m.content.holder for m in messages if isinstance(m.content, EpochOpen)]
    older = {m.content.epoch for m in messages if isinstance(m.content, LogBatch)} - {head.epoch}
    intake = BatchIntake(head, {}, {})
    if holders or older:
        for row in await connection.fetch(_EPOCHS, head.shard, holders, sorted(older)):
            epoch = Epoch(**row)
            intake.known[epoch.holder] = epoch
            intake.last_batch[epoch.mark_epoch] = epoch.mark_batch_no
    return intake


async def move_heads(connection: AnyConnection, intakes: Sequence[BatchIntake]) -> None:
    """Write the epochs that were given, the contracts of their holders, and where the logs end now."""
    places = []
    for intake in intakes:
        head = intake.head
        for epoch in intake.opened:
            marks = epoch.mark_epoch, epoch.mark_batch_no
            await connection.execute(_OPEN, head.shard, epoch.epoch, epoch.holder, *marks, epoch.orchestrator)
        first_seq = head.next_seq - len(intake.placed)
        # Where the ranges lack earlier entries, the follower takes these in with them.
        bounded_seq = head.next_seq - 1 if head.bounded_seq == first_seq - 1 else head.bounded_seq
        places.append((head.shard, head.epoch, head.holder, head.batch_no, head.next_seq, bounded_seq))
    for document in sorted({document for intake in intakes for document in intake.contracts}):
        await connection.execute(_KEEP_CONTRACT, document)
    await connection.executemany(_MOVE, places)


# The segments of the log (migrations/sql/0122_segments.sql): room for what is written, and what an earlier one has. A
# unique index of a divided table holds within one segment. So the writer looks, under the lock on the head, into the
# range of the log that the sessions of a transaction stand in: nobody else adds to it meanwhile.

_IN_SEGMENT = """
SELECT shard, first_seq FROM apc_guard.segments WHERE shard = $1 AND first_seq <= $2 AND last_seq >= $2
"""
OPEN_SEGMENTS = "SELECT apc_guard.open_segments($1, $2, $3)"
_FIRST = """
SELECT min(first_seq) FROM (
    SELECT CASE WHEN shard = $1 THEN coalesce(first_seq, 0) ELSE 0 END AS first_seq
    FROM apc_log.sessions WHERE session_id = ANY($2)
    UNION ALL
    SELECT CASE WHEN shard = $1 THEN first_seq ELSE 0 END FROM apc_log.unopened_sessions WHERE session_id = ANY($2)
) AS named
"""
_IDS = """
SELECT known.shard, known.session_id, known.packet_id, known.packet_hash
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


async def make_room(connection: AnyConnection, shard: int, last: int) -> int:
    """Return the first entry of the segment that entry `last` stands in; opens segments where there is none yet.

    They are open ahead, but for a shard that begins, and where nobody could open them.
    """
    ahead = 0
    while (first := (await find_room(connection, {shard: last})).get(shard)) is None:
        await connection.fetchval(OPEN_SEGMENTS, shard, ahead, 0)
        ahead += 1
    return first


async def find_room(connection: AnyConnection, lasts: Mapping[int, int]) -> dict[int, int]:
    """Return the first entry of the segment that the last entry of each shard will stand in, where it is open."""
    places = [(shard, max(last, 1)) for shard, last in lasts.items()]
    return {row["shard"]: row["first_seq"] for row in await _fetch(connection, _IN_SEGMENT, places)}


@dataclass(slots=True)
class Written:
    """Where the log of a shard stands when a transaction begins to write."""

    shard: int
    next_seq: int
    is_bounded: bool
    """The ranges of the sessions take every entry in."""
    segment_first: int = 1
    """The first entry of the segment that the transaction's last entry stands in, once there is room."""


@dataclass(frozen=True, slots=True)
class Part:
    """What a transaction takes for one shard."""

    shard: int
    messages: Sequence[Received]
    """At least one, in their order."""
    signer: TreeSigner
    """Of the shard's tree."""


@dataclass(slots=True)
class Work:
    """A part while its transaction works on it."""

    part: Part
    intake: BatchIntake
    taken: int
    """How many of the messages are taken."""
    log: Written
    ranges: "Ranges" = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    """As they came, before some are replaced by conflicts."""

    @property
    def last(self) -> int:
        """The last entry that the log of the shard may have then: a session that cannot be stored becomes one."""
        return self.intake.head.next_seq - 1 + len(self.intake.sessions)

    @property
    def packets(self) -> Iterable[tuple[int, PacketEntry]]:
        """The packets among the entries, with their place in the list."""
        return ((at, one.entry) for at, one in enumerate(self.intake.placed) if isinstance(one.entry, PacketEntry))


async def replace_repeats(connection: AnyConnection, works: Sequence[Work]) -> None:
    """Replace by a conflict each packet whose id the log or this list has already, and what an earlier segment has.

    An entry that is repeated within the segment is left: its unique index refuses it.
    """
    firsts = await _first_entries(connection, works)
    packets = [[(at, _identity(one), one) for at, one in work.packets] for work in works]
    asked: list[Wanted] = []
    present: list[Wanted] = []
    for work, first, of_work in zip(works, firsts, packets, strict=True):
        shard, last = work.part.shard, work.log.next_seq - 1
        asked.append((shard, [known for _, known, one in of_work if one.session_id != PRESENCE_SESSION], first, last))
        # The presence of agents is a session that never ends and has no range; it has few packets.
        present.append((shard, [known for _, known, one in of_work if one.session_id == PRESENCE_SESSION], 1, last))
    known = await _known(connection, asked + present)
    for work, first, of_work in zip(works, firsts, packets, strict=True):
        placed, fresh, repeated = work.intake.placed, set[Identity](), 0
        hashes = known.setdefault(work.part.shard, {})
        for at, identity, packet in of_work:
            if (first_hash := hashes.get(identity)) is None:
                hashes[identity] = packet.packet_hash
                fresh.add(identity)
            else:
                placed[at] = placed[at]._replace(entry=duplicate_id(packet, first_hash))
                repeated += 1
        if first < work.log.segment_first:
            repeated += await _replace_older(connection, work.log, placed, fresh, first)
        if repeated:
            work.ranges = ranges_of(placed)


async def _first_entries(connection: AnyConnection, works: Sequence[Work]) -> list[int]:
    """Return the first entry of each shard that names one of the sessions; the next one where none does."""
    asked = [
        (work.part.shard, [name for name in work.ranges if _is_storable((name,))])
        for work in works
        if work.ranges and work.log.is_bounded
    ]
    rows = await _fetch(connection, _FIRST, asked)  # of each one row
    found = {shard: row[0] for (shard, _), row in zip(asked, rows, strict=True) if row[0] is not None}
    return [
        1 if work.ranges and not work.log.is_bounded else max(found.get(work.part.shard, work.log.next_seq), 1)
        for work in works
    ]


Wanted = tuple[int, Collection[Identity], int, int]
"""A shard, packets, and the entries among which they are looked for."""


async def _known(connection: AnyConnection, wanted: Iterable[Wanted]) -> dict[int, dict[Identity, bytes]]:
    """Return by shard those of these packets that the log has among these entries, each with its hash."""
    asked = []
    for shard, packets, first, last in wanted:
        storable = [identity for identity in packets if _is_storable(identity)]
        if storable and first <= last:
            asked.append((*_columns(storable), shard, first, last))
    known: dict[int, dict[Identity, bytes]] = {}
    for row in await _fetch(connection, _IDS, asked):
        known.setdefault(row["shard"], {})[row["session_id"], row["packet_id"]] = row["packet_hash"]
    return known


async def _fetch(connection: AnyConnection, statement: str, asked: Sequence[Sequence[object]]) -> list[asyncpg.Record]:
    """Ask the same of several shards on one way to the server and back."""
    return await connection.fetchmany(statement, asked) if asked else []


async def _replace_older(
    connection: AnyConnection, log: Written, placed: list[Placed], fresh: Set[Identity], first: int
) -> int:
    """Look into the segments before the one that is written to; return how many entries were replaced.

    What is about a packet of this transaction, or of that segment, cannot be there.
    """
    about = [item.entry for item in placed if isinstance(item.entry, HopEntry | LineageEntry)]
    packets = {_identity(entry) for entry in about} - fresh
    known = await _known(connection, [(log.shard, packets, log.segment_first, log.next_seq - 1)])
    packets -= known.get(log.shard, {}).keys()
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


# Puts placed entries into their tables: COPY of everything, and when that fails, of halves, down to the culprit.

ENTRY_ERRORS = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
    # What the encoders of asyncpg raise for a value that does not fit its column.
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""The fault lies with an entry; every other error lies with the database and is tried again."""

HASHED_AT_ONCE = 100
"""Entries that are hashed without a thread: their hashes take less than waking one."""


async def store(connection: AnyConnection, placed: Sequence[Placed], recorded_at: datetime) -> list[bytes]:
    """Copy the rows of these entries (COPY); return their leaf hashes. `recorded_at` is the time of the transaction.

    Raises one of ENTRY_ERRORS when an entry cannot be stored, or has no canonical form.
    """
    (leaves,) = await store_each(connection, [placed], recorded_at)
    return leaves


async def store_each(
    connection: AnyConnection, shards: Sequence[Sequence[Placed]], recorded_at: datetime
) -> list[list[bytes]]:
    """Do for the entries of several shards what `store` does for those of one; return the leaf hashes of each."""
    each = [rows_of(placed) for placed in shards]
    rows: Rows = {}
    for table, added in chain.from_iterable(one.items() for one in each):
        rows.setdefault(table, []).extend(added)

    def hashed() -> list[list[bytes]]:
        return [leaves_of(one, recorded_at) for one in each]

    if sum(map(len, shards)) <= HASHED_AT_ONCE:
        leaves = hashed()
        await _copy(connection, rows)
        return leaves
    # In a thread: while the server works on a COPY, nothing else is to be done here.
    hashing = asyncio.create_task(asyncio.to_thread(hashed))
    try:
        await _copy(connection, rows)
    finally:
        await asyncio.wait({hashing})
    return hashing.result()


async def _copy(connection: AnyConnection, rows: Rows) -> None:
    for table, records in rows.items():
        await connection.copy_records_to_table(
            table.name, schema_name="apc_log", columns=table.columns, records=records
        )


async def store_carefully(connection: AnyConnection, placed: Sequence[Placed], recorded_at: datetime) -> list[Placed]:
    """Store entries, but record one that cannot be stored as a conflict at its place. Returns what was
    stored.

    One bad entry among n costs about 2 log2(n) COPYs of shrinking halves.
    """
    try:
        async with connection.transaction():
            await store(connection, placed, recorded_at)
        return list(placed)
    except ENTRY_ERRORS as error:
        if len(placed) > 1:
            middle = len(placed) // 2
            return [
                *await store_carefully(connection, placed[:middle], recorded_at),
                *await store_carefully(connection, placed[middle:], recorded_at),
            ]
        is_known = isinstance(error, asyncpg.UniqueViolationError)
        kind = DUPLICATE_EVENT if is_known else UNSTORABLE
        conflict = placed[0]._replace(entry=unstorable(placed[0].entry, kind, error))
        await store(connection, [conflict], recorded_at)
        return [conflict]


# What follows from the log: the sessions' present state, and the counts that lineage summaries are read from.

# A session that is new here may have been named before it began: refused packets, conflicts. Its range has that then.
_UPSERT_SESSIONS = """
WITH written AS (
INSERT INTO apc_log.sessions (shard, epoch, batch_no, session_id, run_id, state, is_terminal,
                              round, generation, step, open_deliveries, document, first_seq, last_seq)
SELECT shard, epoch, batch_no, session_id, run_id, state, is_terminal, round, generation, step, open_deliveries,
       document, CASE WHEN EXISTS (SELECT FROM apc_log.sessions AS known WHERE known.session_id = changed.session_id)
                      THEN first_seq ELSE least(first_seq, apc_log.first_named(session_id, shard)) END, last_seq
FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::integer[],
            $9::integer[], $10::bigint[], $11::integer[], $12::jsonb[], $13::bigint[], $14::bigint[])
    AS changed(shard, epoch, batch_no, session_id, run_id, state, is_terminal, round, generation, step, open_deliveries,
               document, first_seq, last_seq)
ON CONFLICT (session_id) DO UPDATE SET
    first_seq = CASE WHEN sessions.shard <> excluded.shard THEN 0
                     WHEN sessions.first_seq IS NULL
                     THEN least(excluded.first_seq, apc_log.first_named(sessions.session_id, excluded.shard))
                     ELSE least(sessions.first_seq, excluded.first_seq) END,
    last_seq = greatest(sessions.last_seq, excluded.last_seq),
    shard = excluded.shard, epoch = excluded.epoch, batch_no = excluded.batch_no, run_id = excluded.run_id,
    state = excluded.state, is_terminal = excluded.is_terminal, round = excluded.round,
    generation = excluded.generation, step = excluded.step, open_deliveries = excluded.open_deliveries,
    document = excluded.document, updated_at = excluded.updated_at
RETURNING session_id)
SELECT apc_guard.forget_begun(array_agg(session_id)) FROM written
"""
# Of sessions that entries name without a change of their state: packets refused after their end, for example.
_WIDEN = "SELECT apc_log.widen_ranges($1, $2, $3, $4)"
_TALLY = "SELECT apc_log.tally($1, $2, $3)"
_TALLIED = frozenset({PacketType.TRANSFER, PacketType.EVAL})

_NOTE_SIGNS = """
INSERT INTO apc_log.agent_presence AS known (agent_id, last_seen)
SELECT agent_id, least(at, now()) FROM unnest($1::text[], $2::timestamptz[]) AS sign(agent_id, at) ORDER BY agent_id
ON CONFLICT (agent_id) DO UPDATE SET last_seen = excluded.last_seen WHERE excluded.last_seen > known.last_seen
"""

_log = get_logger(__name__)

SessionState = tuple[int, int, SessionUpdate]
"""epoch, batch_no, row."""


Ranges = Mapping[str, tuple[int, int]]
"""session_id -> the first and the last seq of the entries that name it."""


def ranges_of(placed: Iterable[Placed]) -> Ranges:
    """Return where the entries of each session stand among these, which are in the order of the log."""
    ranges: dict[str, tuple[int, int]] = {}
    for (_, seq, _, _), _, entry in placed:
        session_id = getattr(entry, "session_id", None)
        if session_id is not None and session_id != PRESENCE_SESSION:
            ranges[session_id] = (ranges[session_id][0] if session_id in ranges else seq, seq)
    return ranges


async def widen_ranges(connection: AnyConnection, shard: int, ranges: Ranges) -> None:
    """Take entries into the ranges of sessions whose state they do not change, and of those that have not begun."""
    if ranges:
        first, last = zip(*ranges.values(), strict=True)
        await connection.execute(_WIDEN, shard, list(ranges), first, last)


Changed = tuple[int, Iterable[SessionState], Ranges]
"""A shard, the sessions that its batches touched, and where its entries name them."""


async def project_sessions(connection: AnyConnection, changed: Iterable[Changed]) -> None:
    """Upsert the sessions that the batches touched. Raises one of ENTRY_ERRORS on a document that is no
    JSON."""
    states = [
        (shard, epoch, batch_no, *astuple(row), *ranges.get(row.session_id, (None, None)))
        for shard, touched, ranges in changed
        for epoch, batch_no, row in touched
    ]
    if states:
        await connection.execute(_UPSERT_SESSIONS, *_columns(states))


async def project_sessions_carefully(
    connection: AnyConnection, intake: BatchIntake, now: datetime, ranges: Ranges
) -> None:
    """Project sessions one by one: a state that cannot be stored is recorded as a conflict, at the
    end."""
    for state in intake.sessions.values():
        try:
            async with connection.transaction():
                await project_sessions(connection, [(intake.head.shard, [state], ranges)])
        except ENTRY_ERRORS as error:
            epoch, batch_no, row = state
            intake.place([unstorable(row, UNSTORABLE, error)], epoch, batch_no, now)
            await store(connection, intake.placed[-1:], now)


async def note_signs(connection: AnyConnection, signs: Mapping[str, datetime]) -> None:
    """Keep the newest sign of life of each agent, none later than now. Signs that cannot be stored are dropped."""
    if not signs:
        return
    try:
        async with connection.transaction():
            await connection.execute(_NOTE_SIGNS, list(signs), list(signs.values()))
    except ENTRY_ERRORS as error:
        _log.warning("signs_of_life_dropped", agents=len(signs), reason=str(error))


async def _report_signs(home: asyncpg.Pool, messages: Sequence[Received]) -> None:
    """Keep the signs of life of these messages at home. What cannot be kept now is dropped: newer ones follow."""
    reports = (one.content for one in messages)
    signs = {agent: at for one in reports if isinstance(one, SignsOfLifeReport) for agent, at in one.signs.items()}
    try:
        if signs:
            async with home.acquire() as connection:
                await note_signs(connection, signs)
    except DATABASE_AWAY as error:
        _log.warning("signs_of_life_dropped", agents=len(signs), reason=reason_of(error))


async def tally(connection: AnyConnection, placed: Sequence[Placed]) -> None:
    """Count the verdicts on TRANSFERs and the metrics of EVALs among these entries, all of one shard, once stored.

    What they say is read back by the views that define it (migrations/sql/0105_analytics.sql), so both cannot differ.
    """
    if any(_is_tallied(item) for item in placed):
        (shard, first, _, _), (_, last, _, _) = placed[0].place, placed[-1].place
        await connection.execute(_TALLY, shard, first, last)


def _is_tallied(item: Placed) -> bool:
    match item.entry:
        case PacketEntry(packet_type=packet_type):
            return packet_type in _TALLIED
        case HopEntry(recipient="", from_state="SCHEMA_VALIDATED"):
            return True
    return False


@dataclass(frozen=True, slots=True)
class Committed:
    """What a transaction did to the log of a shard."""

    messages: int
    """How many of the messages, from the first, are done and may be acknowledged."""
    entries: int
    duplicates: int
    """Batches and openings that were in the log already."""
    fenced: int
    unstored: int
    """Entries that became conflicts of the writer."""


async def commit(
    connection: AnyConnection,
    shard: int,
    messages: Sequence[Received],
    signer: TreeSigner,
    encryption: Encryption | None = None,
    home: asyncpg.Pool | None = None,
) -> Committed:
    """Write these messages, at least one, in one transaction; when this returns they are committed.

    First everything in bulk; if an entry is at fault, again with the culprits set aside as conflicts. When a
    later message is a reason to stop, the ones before it are committed.

    Args:
        connection: to the database of the shard.
        shard: whose log it is.
        messages: in their order.
        signer: of the shard's tree.
        encryption: of bodies; None = they are stored as they came.
        home: keeps the signs of life, when the shard is in another database.

    Raises:
        LogStopped: the first message cannot be placed; nothing was written.
        asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError: nothing was written, or, when
        the connection broke during COMMIT, that is unknown: doing it again is safe.
    """
    part = Part(shard, messages, signer)
    try:
        done = await _attempt(connection, part, encryption, home, is_careful=False)
    except ENTRY_ERRORS:
        done = await _attempt(connection, part, encryption, home, is_careful=True)
    crash_point("persister.after_commit")
    if home is not None:
        await _report_signs(home, messages[: done.messages])
    return done


async def commit_together(
    connection: AnyConnection, parts: Sequence[Part], encryption: Encryption | None, home: asyncpg.Pool | None
) -> dict[int, Committed]:
    """Write what several shards of one database have in one transaction; return what was done, by shard.

    It waits for no shard: one whose head is locked or missing, or whose log has no room, is left out.

    Raises what is wrong with any of them; nothing was written then, or that is unknown: doing it again, each shard by
    itself, is safe.
    """
    async with connection.transaction():
        heads = await lock_free_heads(connection, [part.shard for part in parts])
        works = [await _begin(connection, part, *heads[part.shard]) for part in parts if part.shard in heads]
        if not works:
            return {}
        now = heads[works[0].part.shard][1]
        rooms = await find_room(connection, {work.part.shard: work.last for work in works})
        works = [work for work in works if work.part.shard in rooms]
        if not works:
            return {}
        for work in works:
            work.log.segment_first = rooms[work.part.shard]
        await _prepare(connection, works, encryption)
        await replace_repeats(connection, works)
        trees = await _finish(connection, works, await _write(connection, works, now), keeps_signs=home is None)
    for work, tree in zip(works, trees, strict=True):
        work.part.signer.confirm(tree)
    crash_point("persister.after_commit")
    if home is not None:
        await _report_signs(home, [one for work in works for one in work.part.messages[: work.taken]])
    return {work.part.shard: _done(work) for work in works}


async def _attempt(
    connection: AnyConnection,
    part: Part,
    encryption: Encryption | None,
    home: asyncpg.Pool | None,
    *,
    is_careful: bool,
) -> Committed:
    async with connection.transaction():
        head, now = await lock_head(connection, part.shard)
        work = await _begin(connection, part, head, now)
        await _prepare(connection, [work], encryption)
        work.log.segment_first = await make_room(connection, part.shard, work.last)
        await replace_repeats(connection, [work])
        if is_careful:
            leaves = [await _write_carefully(connection, work.intake, now)]
        else:
            leaves = await _write(connection, [work], now)
        (tree,) = await _finish(connection, [work], leaves, keeps_signs=home is None)
    part.signer.confirm(tree)
    return _done(work)


async def _begin(connection: AnyConnection, part: Part, head: Head, now: datetime) -> Work:
    log = Written(part.shard, head.next_seq, head.bounded_seq == head.next_seq - 1)
    intake = await begin_intake(connection, head, part.messages)
    return Work(part, intake, _take(intake, part.messages, now), log)


async def _prepare(connection: AnyConnection, works: Sequence[Work], encryption: Encryption | None) -> None:
    """Encrypt the entries, and note where they name which session."""
    if encryption is not None:
        # At once: the subjects' keys are taken in one order, whatever shards they are of.
        placed = [item for work in works for item in work.intake.placed]
        await encryption.apply(connection, placed)
        sealed = iter(placed)
        for work in works:
            work.intake.placed[:] = islice(sealed, len(work.intake.placed))
    for work in works:
        work.entries = [item.entry for item in work.intake.placed]
        work.ranges = ranges_of(work.intake.placed)


async def _write(connection: AnyConnection, works: Sequence[Work], now: datetime) -> list[list[bytes]]:
    """Store the entries and project the sessions; return the leaf hashes of each shard."""
    for work in works:
        check_changes(work.intake.placed)
    leaves = await store_each(connection, [work.intake.placed for work in works], now)
    await project_sessions(
        connection, [(work.part.shard, work.intake.sessions.values(), work.ranges) for work in works]
    )
    for work in works:
        unchanged = {name: place for name, place in work.ranges.items() if name not in work.intake.sessions}
        await widen_ranges(connection, work.part.shard, unchanged)
    return leaves


async def _finish(
    connection: AnyConnection, works: Sequence[Work], leaves: Sequence[Sequence[bytes]], *, keeps_signs: bool
) -> list[Tree]:
    """Do what follows the rows: tallies, trees, heads, signs of life. Returns the trees."""
    for work in works:
        await tally(connection, work.intake.placed)
    added = [(one.part.signer, one.log.next_seq, hashes) for one, hashes in zip(works, leaves, strict=True)]
    trees = await attest_each(connection, added)
    await move_heads(connection, [work.intake for work in works])
    if keeps_signs:
        signs: dict[str, datetime] = {}
        for work in works:
            signs |= {agent: max(at, signs.get(agent, at)) for agent, at in work.intake.signs.items()}
        await note_signs(connection, signs)
    crash_point("persister.before_commit")
    return trees


def _done(work: Work) -> Committed:
    intake = work.intake
    unstored = len(intake.placed) - len(work.entries)
    unstored += sum(item.entry is not entry for item, entry in zip(intake.placed, work.entries, strict=False))
    return Committed(work.taken, len(intake.placed), intake.duplicates, intake.fenced, unstored)


def _take(intake: BatchIntake, messages: Sequence[Received], now: datetime) -> int:
    for taken, message in enumerate(messages):
        try:
            intake.take(message, now)
        except LogStopped:
            if taken == 0:
                raise
            return taken
    return len(messages)


async def _write_carefully(connection: AnyConnection, intake: BatchIntake, now: datetime) -> list[bytes]:
    checked = with_checked_changes(intake.placed)
    intake.placed[:] = await store_carefully(connection, checked, now)
    ranges = ranges_of(intake.placed)
    await project_sessions_carefully(connection, intake, now, ranges)
    await widen_ranges(connection, intake.head.shard, ranges)
    return leaves_of(rows_of(intake.placed), now)

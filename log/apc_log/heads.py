"""Where the log of each shard ends and who waits until it grows, where a session stands, and what was let go of."""

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache, wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.telemetry import get_logger
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.errors import ArchiveUnavailable

AnyConnection = asyncpg.Connection | PoolConnectionProxy
"""A connection, or a pool's proxy of one."""


_HOLDS_LOG = "SELECT to_regclass('apc_log.agent_packets') IS NOT NULL"
_ELSEWHERE = "SELECT shard, database FROM apc_log.shard_places WHERE database IS NOT NULL ORDER BY shard LIMIT 1"
_HEAD = "SELECT epoch, holder, batch_no, next_seq FROM apc_log.shards WHERE shard = $1"
_GIVEN = """
SELECT given.epoch, given.mark_epoch, given.mark_batch_no, head.epoch AS newest
FROM apc_log.shard_epochs AS given JOIN apc_log.shards AS head USING (shard)
WHERE given.shard = $1 AND given.holder = $2
"""
_EPOCHS = "SELECT shard, epoch FROM apc_log.shards ORDER BY shard"
_ENDS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards ORDER BY shard"
_TREE_SIZES = """
SELECT shard, coalesce(tree_size, 0) AS size FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
ORDER BY shard
"""


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Where the log of a shard ends; epoch 0 before the first holder."""

    epoch: int = 0
    holder: UUID | None = None
    batch_no: int = 0
    next_seq: int = 1


@dataclass(frozen=True, slots=True)
class GivenEpoch:
    """The epoch that the persister gave to a holder, and the last batch of the holder before."""

    epoch: int
    mark_epoch: int
    mark_batch_no: int
    newest: int
    """The newest epoch of the shard: another one means that the given one is over."""


async def holds_log(pool: asyncpg.Pool) -> bool:
    """Return whether the database has the tables of the log."""
    return bool(await pool.fetchval(_HOLDS_LOG))


async def find_elsewhere(pool: asyncpg.Pool) -> tuple[int, str] | None:
    """Return a shard that is in another database of the log, and the name of that; None when there is none."""
    row = await pool.fetchrow(_ELSEWHERE)
    return None if row is None else (row["shard"], row["database"])


async def read_head(pool: asyncpg.Pool, shard: int) -> ShardHead:
    """Return where the log of a shard ends."""
    row = await pool.fetchrow(_HEAD, shard)
    return ShardHead() if row is None else ShardHead(**row)


async def read_given_epoch(pool: asyncpg.Pool, shard: int, holder: UUID) -> GivenEpoch | None:
    """Return the epoch that was given to a holder; None while there is none."""
    row = await pool.fetchrow(_GIVEN, shard, holder)
    return None if row is None else GivenEpoch(**row)


async def read_epochs(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the newest epoch of every shard that ever had a holder."""
    return {row["shard"]: row["epoch"] for row in await connection.fetch(_EPOCHS)}


async def read_ends(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the seq of the last entry of every shard; 0 = the shard has none."""
    return {row["shard"]: row["last"] for row in await connection.fetch(_ENDS)}


async def read_tree_sizes(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return how many entries of every shard stand in its Merkle tree."""
    return {row["shard"]: row["size"] for row in await connection.fetch(_TREE_SIZES)}


# Following the log: one small read for all who wait.

PERIOD_SECONDS: Final = 0.05
"""Between two looks at the ends while somebody follows the log."""
_AWAY_SECONDS = 1.0
"""Between two looks while the database does not answer."""
_log = get_logger("apc_log")


class LogWatch:
    """Tells all who follow the log that it has grown: one look at its ends for all of them, 20 times a second.

    Nobody looks while nobody follows.

    ```python
    async def wait_for_growth(watch: LogWatch) -> Mapping[int, int]:
        with watch.followed():
            await watch.until_changed(watch.ends)
        return watch.ends
    ```

    Args:
        pool: connections to the log's database, for reading.
    """

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._ends: dict[int, int] = {}
        self._is_away = False
        self._failure: Exception | None = None
        self._followers = 0
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def ends(self) -> dict[int, int]:
        """The last entry of each shard, as it was read last; what was read before a look at the log misses nothing."""
        return dict(self._ends)

    @property
    def is_away(self) -> bool:
        """Whether the database did not answer the last time."""
        return self._is_away

    @property
    def followers(self) -> int:
        """How many follow the log."""
        return self._followers

    async def look(self) -> None:
        """Read the ends unless a follower does. Raises the errors of the database."""
        if not self._followers:
            self._tell(await read_ends(self._pool), is_away=False)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Read the ends again and again while the context is open."""
        self._followers += 1
        if self._reader is None or self._reader.done():
            self._failure = None
            self._reader = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self._followers -= 1

    async def until_changed(
        self, seen: Mapping[int, int], *, was_away: bool | None = None, patience: float | None = None
    ) -> bool:
        """Wait, as a follower, until the log ends elsewhere than `seen`; return False after `patience` seconds.

        While the database is away it waits. Each change has an event, and no lock is taken: a server that stops
        cancels its streams again and again.

        Args:
            seen: the last entry of each shard that the follower knows.
            was_away: what it knows of the database; then a change of that ends the wait too.
            patience: default as long as it takes.

        Raises:
            Exception: what ended the reader, no error of the database.
        """
        try:
            async with asyncio.timeout(patience):
                while not self._differs(seen, was_away):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _differs(self, seen: Mapping[int, int], was_away: bool | None) -> bool:
        if self._failure is not None:
            raise self._failure
        if was_away is not None and self._is_away != was_away:
            return True
        grown = any(last > seen.get(shard, 0) for shard, last in self._ends.items())
        return not self._is_away and (grown or any(seq > self._ends.get(shard, 0) for shard, seq in seen.items()))

    async def _read(self) -> None:
        """Read the ends until nobody follows; go on when the database was away."""
        while self._followers:
            try:
                with unasked_cancel_fails():
                    ends = await read_ends(self._pool)
            except DATABASE_AWAY as error:
                if not self._is_away:
                    _log.warning("log_watch_waits", reason=f"{type(error).__name__}: {first_line(error)}")
                self._tell(self._ends, is_away=True)
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception as error:
                self._failure = error
                self._wake()
                return
            else:
                self._tell(ends, is_away=False)
                await asyncio.sleep(PERIOD_SECONDS)

    def _tell(self, ends: dict[int, int], *, is_away: bool) -> None:
        if (ends, is_away) != (self._ends, self._is_away):
            self._ends, self._is_away = ends, is_away
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


# Ranges of the log. The planner passes over every partition outside the bounds of a statement that names a session.

_RANGES = """
SELECT shard, first_seq AS first, last_seq AS last FROM apc_log.sessions
WHERE session_id = ANY ($1::text[]) AND first_seq > 0 AND last_seq >= first_seq
  AND NOT EXISTS (SELECT FROM apc_log.shards WHERE bounded_seq < next_seq - 1)
"""
_LASTS = """
SELECT shard, first_seq IS NOT DISTINCT FROM 0 AS is_elsewhere,
       CASE WHEN NOT EXISTS (SELECT FROM apc_log.shards WHERE bounded_seq < next_seq - 1) THEN last_seq END AS last
FROM apc_log.sessions WHERE session_id = ANY ($1::text[])
"""
_LAST_HOP = """
SELECT max(hop.seq) FROM unnest($1::text[], $2::uuid[]) AS wanted(session_id, packet_id)
JOIN apc_log.packet_events AS hop USING (session_id, packet_id)
WHERE hop.seq >= 1 /*within hop*/
"""
_NEAR = 1_000
"""Entries behind a page that are read without a look for the last one that is about it."""
_WITHIN = re.compile(r"/\*within (\w+)\*/")
_PARAMETER = re.compile(r"\$(\d+)")
LAST: Final = (1 << 63) - 1
"""After every entry."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries first <= seq <= last of a shard."""

    shard: int
    first: int
    last: int = LAST


async def _range_behind(
    connection: asyncpg.Pool | AnyConnection, shard: int, seq: int, session_ids: Collection[str]
) -> LogRange | None:
    """Return the range behind a place that holds everything about packets of these sessions in one shard.

    Nothing about a packet comes before it, or in another shard. None when that is not known of a session.
    """
    rows = await connection.fetch(_LASTS, list(set(session_ids)))
    if any(row["is_elsewhere"] or row["shard"] != shard for row in rows):
        return None
    lasts = [row["last"] for row in rows]
    is_known = len(lasts) == len(set(session_ids)) and None not in lasts
    return LogRange(shard, seq, max(lasts) if is_known else LAST)


async def read_range(connection: asyncpg.Pool | AnyConnection, session_ids: Collection[str]) -> LogRange | None:
    """Return a range that holds every entry of these sessions.

    None where there is none, or it is not known: a session that never began, sessions of several shards, entries that
    the log writer's follower has yet to take in. Then the whole log is read.
    """
    wanted = set(session_ids)
    rows = await connection.fetch(_RANGES, list(wanted))
    if not rows or len(rows) < len(wanted) or len({row["shard"] for row in rows}) > 1:
        return None
    return LogRange(rows[0]["shard"], min(row["first"] for row in rows), max(row["last"] for row in rows))


async def range_of(
    connection: asyncpg.Pool | AnyConnection, places: Sequence[tuple[int, int]], packets: Sequence[tuple[str, UUID]]
) -> LogRange | None:
    """Return the range from packets of one shard, at these places, to the last hop of any; None if it is not known.

    Args:
        connection: what takes statements.
        places: shard and seq of each packet.
        packets: session and id of each.
    """
    sessions, ids = [session for session, _ in packets], [packet_id for _, packet_id in packets]
    bounds = await _range_behind(connection, *min(places), sessions)
    last = max(seq for _, seq in places)
    if bounds is None or bounds.last - last <= _NEAR:
        return bounds
    hop = await connection.fetchval(*bounded(_LAST_HOP, bounds, sessions, ids))
    return replace(bounds, last=max(hop or 0, last))


def bounded(statement: str, bounds: LogRange | None, *values: Any) -> tuple[Any, ...]:
    """Return a statement and its parameters, to be sent as they are: `values`, then the bounds if they are known.

    `/*within NAME*/` behind a condition stands for the bounds of the table or view with this alias, and `/*range*/`
    behind an argument for those of a function. A statement is valid as it stands, without bounds.

    >>> bounded("SELECT FROM hops AS hop WHERE session_id = $1 /*within hop*/", LogRange(0, 5, 9), "s-1")
    ('SELECT FROM hops AS hop WHERE session_id = $1 AND hop.shard = $2 AND hop.seq BETWEEN $3 AND $4', 's-1', 0, 5, 9)
    """
    if bounds is None:
        return (statement, *values)
    return (_filled(statement), *values, bounds.shard, bounds.first, bounds.last)


@cache
def _filled(statement: str) -> str:
    at = max((int(number) for number in _PARAMETER.findall(statement)), default=0) + 1
    filled = _WITHIN.sub(rf"AND \1.shard = ${at} AND \1.seq BETWEEN ${at + 1} AND ${at + 2}", statement)
    return filled.replace("/*range*/", f", ${at}, ${at + 1}, ${at + 2}")


READING: Final[Mapping[str, str]] = {"plan_cache_mode": "force_custom_plan"}
"""Settings of connections that only read the log: a plan for any bounds names all segments, and is kept in memory."""


def windowed(statement: str, window: LogRange | None, *values: Any) -> tuple[Any, ...]:
    """Return as `bounded` a statement in which `/*window NAME*/` alone stands for bounds.

    What `bounded` has not filled in before has none.
    """
    return bounded(_window(statement), window, *values)


@cache
def _window(statement: str) -> str:
    return _WITHIN.sub("", statement).replace("/*range*/", "").replace("/*window ", "/*within ")


# What was let go of (ADR 26). Of a released segment the database keeps the rows of sessions that stay, and TRANSFERs,
# EVALs and decisions about protocols with what is about them. A reading that needs more is an error, or is repeated
# with the archive.

_GONE = """
SELECT shard, first_seq, last_seq, state = 'expired', manifest ->> 'sha256' FROM apc_log.segments
WHERE state IN ('released', 'expired')
ORDER BY shard, first_seq
"""
# A session whose transitions or other packets are still there has stayed in this segment as a whole. One that nothing
# names was perhaps named there before it began, or never did.
_OF_SESSIONS = """
WITH gone AS MATERIALIZED (
    SELECT shard, first_seq, last_seq, had_names FROM apc_log.segments WHERE state IN ('released', 'expired')
), named AS (
    SELECT session_id, shard, first_seq, last_seq FROM apc_log.sessions WHERE session_id = ANY ($1::text[])
    UNION ALL
    SELECT session_id, shard, first_seq, last_seq FROM apc_log.unopened_sessions WHERE session_id = ANY ($1::text[])
    UNION ALL
    SELECT one, -1, 0, 0 FROM unnest($1::text[]) AS one WHERE one = $2
    UNION ALL
    SELECT one, NULL, NULL, NULL FROM unnest($1::text[]) AS one
    WHERE NOT EXISTS (SELECT FROM apc_log.sessions WHERE session_id = one)
      AND NOT EXISTS (SELECT FROM apc_log.unopened_sessions WHERE session_id = one)
)
SELECT DISTINCT gone.shard, gone.first_seq
FROM named JOIN gone ON named.first_seq = 0 OR named.first_seq IS NULL AND gone.had_names
  OR gone.shard = named.shard AND gone.first_seq <= named.last_seq AND gone.last_seq >= named.first_seq
WHERE NOT EXISTS (
    SELECT FROM apc_log.coordination_events AS moved WHERE moved.session_id = named.session_id
      AND moved.shard = gone.shard AND moved.seq BETWEEN gone.first_seq AND gone.last_seq
) AND NOT EXISTS (
    SELECT FROM apc_log.agent_packets AS packet WHERE packet.session_id = named.session_id
      AND packet.shard = gone.shard AND packet.seq BETWEEN gone.first_seq AND gone.last_seq
      AND packet.packet_type NOT IN ('TRANSFER', 'EVAL')
      AND NOT (packet.packet_type = 'DECISION' AND packet.sender_agent_id = 'orchestrator' AND packet.facts ? 'decay')
)
"""
_RUN_SESSIONS = "SELECT session_id FROM apc_log.sessions WHERE run_id = ANY ($1::text[])"
_RUN_PACKETS = "SELECT DISTINCT session_id FROM apc_log.agent_packets WHERE run_id = ANY ($1::text[])"
# What names the run in a session that never began may stand anywhere: with an archive it is looked for wherever there
# is such a session ($2), without one between the run's first entry and its last.
_STRAYS = """
SELECT DISTINCT gone.shard, gone.first_seq
FROM apc_log.segments AS gone
WHERE gone.state IN ('released', 'expired') AND (gone.had_names OR EXISTS (
    SELECT FROM apc_log.unopened_sessions AS other WHERE other.first_seq = 0
      OR other.shard = gone.shard AND other.first_seq <= gone.last_seq AND other.last_seq >= gone.first_seq
)) AND ($2 OR EXISTS (
    SELECT FROM (
        SELECT min(first_seq) AS first, max(last_seq) AS last FROM apc_log.sessions
        WHERE run_id = ANY ($1::text[]) AND first_seq IS NOT NULL AND shard = gone.shard
    ) AS run WHERE gone.first_seq <= run.last AND gone.last_seq >= run.first
))
"""
_SESSIONS_OF_PACKETS = "SELECT packet_id, session_id FROM apc_log.packet_ids WHERE packet_id = ANY ($1::uuid[])"
_PACKETS_AT = """
SELECT packet.shard, packet.seq, packet.session_id FROM unnest($1::integer[], $2::bigint[]) AS place(shard, seq)
JOIN apc_log.agent_packets AS packet USING (shard, seq)
"""
_FILLED = """
SELECT shard, first_seq, (
    SELECT recorded_at FROM apc_log.log_checkpoints AS note
    WHERE note.shard = segments.shard AND note.tree_size >= segments.last_seq ORDER BY note.tree_size LIMIT 1
) AS filled_at
FROM apc_log.segments WHERE state IN ('released', 'expired')
"""
_ORIGIN = "SELECT split_part(note, E'\\n', 1) FROM apc_log.log_checkpoints WHERE shard = $1 LIMIT 1"
_ANY_ORIGIN = "SELECT split_part(note, E'\\n', 1) FROM apc_log.log_checkpoints LIMIT 1"


@dataclass(frozen=True, slots=True)
class Gone:
    """A segment that was released from the database."""

    shard: int
    first: int
    last: int
    is_expired: bool
    """Its rows may have gone from the archive as well."""
    manifest: str | None
    """SHA-256 of its manifest, as the log has it."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which part of the log a reading looks at: what is named, together; all of it when nothing is."""

    sessions: Collection[str] | None = None
    runs: Collection[str] | None = None
    packets: Collection[UUID] | None = None
    """By id, of any session."""
    places: Collection[tuple[int, int]] | None = None
    ranges: Collection[LogRange] | None = None
    since: datetime | None = None
    is_everywhere: bool = False
    """Of the packets conflicts are wanted, which may stand in any segment."""
    page: "Page | None" = None
    """Of the named part a page of packets alone is wanted."""
    sought: "Sought | None" = None
    """Of the archive alone these packets are wanted, as the search has them."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is named."""
        named = (self.sessions, self.runs, self.packets, self.places, self.ranges, self.since)
        return all(one is None for one in named)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of packets that match every filter, in the order of the log or against it, behind `after`."""

    filters: Mapping[str, Any]
    after: tuple[int, int] | None
    limit: int
    newest: bool = False


@dataclass(frozen=True, slots=True)
class Sought:
    """The newest archived packets that fit everything given, without HEARTBEATs."""

    most: int
    is_cut: bool
    """Whether the first `most` are enough; else more of them are an error."""
    run_id: str | None = None
    agent: str | None = None
    """The sender or a recipient."""
    code: str | None = None
    """Of the refusal; what was held on arrival fits any."""
    since: datetime | None = None
    until: datetime | None = None
    """This time is within."""


async def released_in(
    connection: asyncpg.Pool | AnyConnection, reach: Reach, *, is_thorough: bool = False
) -> list[Gone]:
    """Return the released segments of which a reading of `reach` needs more than the database has, in their order.

    `is_thorough`, with an archive: those too that may hold a packet of the same id in another session, or one that
    names the run in a session that never began. Without one too little of what is here could be read.
    """
    rows = await connection.fetch(_GONE)
    gone = {(row[0], row[1]): Gone(*row) for row in rows}
    if not gone or reach.is_whole or reach.is_everywhere:
        return list(gone.values())
    touched: set[tuple[int, int]] = set()
    sessions = set(reach.sessions or ())
    if reach.runs is not None:
        found = [row[0] for row in await connection.fetch(_RUN_SESSIONS, list(reach.runs))]
        if not found:
            return list(gone.values())
        sessions.update(found)
        touched.update((row[0], row[1]) for row in await connection.fetch(_STRAYS, list(reach.runs), is_thorough))
    if reach.packets is not None:
        rows = await connection.fetch(_SESSIONS_OF_PACKETS, list(reach.packets))
        if is_thorough or {row["packet_id"] for row in rows} != set(reach.packets):
            return list(gone.values())
        sessions.update(row["session_id"] for row in rows)
    for place in (one for one in gone.values() if reach.ranges is not None):
        spans = [one for one in reach.ranges or () if one.shard == place.shard]
        if any(one.first <= place.last and one.last >= place.first for one in spans):
            touched.add((place.shard, place.first))
    if reach.places is not None:
        here, away = await _at_places(connection, list(gone.values()), reach.places)
        sessions.update(here)
        touched.update(away)
    if reach.since is not None:
        for row in await connection.fetch(_FILLED):
            if row["filled_at"] is None or row["filled_at"] >= reach.since:
                touched.add((row["shard"], row["first_seq"]))
    if sessions:
        rows = await connection.fetch(_OF_SESSIONS, list(sessions), PRESENCE_SESSION)
        touched.update((row[0], row[1]) for row in rows)
    return [one for place, one in gone.items() if place in touched]


async def _at_places(
    connection: asyncpg.Pool | AnyConnection, gone: Sequence[Gone], places: Collection[tuple[int, int]]
) -> tuple[set[str], set[tuple[int, int]]]:
    """Return the sessions of the packets that stayed at these places, and the segments of the others."""
    of = {
        tuple(place): (one.shard, one.first)
        for place in places
        for one in gone
        if place[0] == one.shard and one.first <= place[1] <= one.last
    }
    if not of:
        return set(), set()
    rows = await connection.fetch(_PACKETS_AT, [shard for shard, _ in of], [seq for _, seq in of])
    here = {(row["shard"], row["seq"]): row["session_id"] for row in rows}
    return set(here.values()), {segment for place, segment in of.items() if place not in here}


async def sessions_here(connection: asyncpg.Pool | AnyConnection, reach: Reach) -> set[str]:
    """Return the sessions that the database knows of what is reached: runs, packets, places."""
    found: set[str] = set()
    if reach.runs is not None:
        for statement in (_RUN_SESSIONS, _RUN_PACKETS):
            found |= {row[0] for row in await connection.fetch(statement, list(reach.runs))}
    if reach.packets is not None:
        rows = await connection.fetch(_SESSIONS_OF_PACKETS, list(reach.packets))
        found |= {row["session_id"] for row in rows}
    if reach.places is not None:
        shards, seqs = [place[0] for place in reach.places], [place[1] for place in reach.places]
        found |= {row["session_id"] for row in await connection.fetch(_PACKETS_AT, shards, seqs)}
    return found


async def places_away(
    connection: asyncpg.Pool | AnyConnection, places: Collection[tuple[int, int]]
) -> frozenset[tuple[int, int]]:
    """Return those of these places that have no packet here and stand in a released segment."""
    rows = await connection.fetch(_GONE) if places else []
    within = [
        (shard, seq)
        for shard, seq in places
        if any(row["shard"] == shard and row["first_seq"] <= seq <= row["last_seq"] for row in rows)
    ]
    if not within:
        return frozenset()
    found = await connection.fetch(_PACKETS_AT, [shard for shard, _ in within], [seq for _, seq in within])
    return frozenset(within) - {(row["shard"], row["seq"]) for row in found}


async def released_until(connection: asyncpg.Pool | AnyConnection) -> datetime | None:
    """Return a time up to which entries stand in the archive alone; None where nothing was released."""
    times = [row["filled_at"] for row in await connection.fetch(_FILLED)]
    return max((at for at in times if at is not None), default=None)


async def origin_of(connection: asyncpg.Pool | AnyConnection, shard: int) -> str:
    """Return the origin of a shard that its signed checkpoints name: `<log name>/<shard>`."""
    return str(await connection.fetchval(_ORIGIN, shard))


async def log_name_of(connection: asyncpg.Pool | AnyConnection) -> str | None:
    """Return the name of the log that signed checkpoints of this database give; None = it has none yet."""
    origin: str | None = await connection.fetchval(_ANY_ORIGIN)
    return None if origin is None else origin.rpartition("/")[0]


async def unavailable(connection: asyncpg.Pool | AnyConnection, gone: Gone) -> ArchiveUnavailable:
    """Return the error of who needs the archive of a segment and has none."""
    origin = await origin_of(connection, gone.shard)
    problem = "it was released from the database, and there is no archive to read: set APC_ARCHIVE_URL"
    return ArchiveUnavailable(f"log/{origin}/{gone.first:020}", None, problem)


async def require_here(connection: asyncpg.Pool | AnyConnection, reach: Reach) -> None:
    """Raise ArchiveUnavailable where a reading of `reach` needs more than the database has."""
    gone = await released_in(connection, reach)
    if gone:
        raise await unavailable(connection, gone[0])


Thaw = Callable[[asyncpg.Pool, Reach, Sequence[Gone]], AbstractAsyncContextManager[asyncpg.Pool]]
"""Gives what takes statements as the pool does, and has the rows of a reach, archived ones too."""
_ARCHIVES: WeakKeyDictionary[asyncpg.Pool, Thaw] = WeakKeyDictionary()
"""Of each pool how to read the archive of its log."""
_SHARDS = 256
_INSIDE: ContextVar[bool] = ContextVar("inside", default=False)
"""Whether this is part of a reading that looks for what is missing itself."""
Given = Mapping[str, Any]
"""Parameter -> argument of a reading; filters by their own names."""
P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C", bound=asyncpg.Pool | AnyConnection)


def attach_archive(pool: asyncpg.Pool, thaw: Thaw) -> None:
    """Let readings through this pool go on in the archive."""
    _ARCHIVES[pool] = thaw


@asynccontextmanager
async def thawed(connection: AnyConnection, pool: asyncpg.Pool | None, reach: Reach) -> AsyncIterator[AnyConnection]:
    """Give what takes statements about a reach: the connection, or where it lacks rows what the pool's archive gives.

    Raises:
        ArchiveUnavailable: rows are in the archive, and the pool has none.
    """
    thaw = None if pool is None else _ARCHIVES.get(pool)
    gone = await released_in(connection, reach, is_thorough=thaw is not None)
    if not gone:
        yield connection
    elif pool is None or thaw is None:
        raise await unavailable(connection, gone[0])
    else:
        async with thaw(pool, reach, gone) as whole:
            yield cast(AnyConnection, whole)


@asynccontextmanager
async def sought(
    pool: asyncpg.Pool | AnyConnection, reach: Reach, gone: Sequence[Gone]
) -> AsyncIterator[asyncpg.Pool | None]:
    """Give what takes statements over archived packets alone, with their rows of the search; None without an archive.

    Raises:
        ArchiveTooLarge: more packets fit than are wanted.
        ArchiveUnavailable, ArchiveDiffers: a segment cannot be read.
    """
    thaw = _ARCHIVES.get(pool) if isinstance(pool, asyncpg.Pool) else None
    if thaw is None or not isinstance(pool, asyncpg.Pool):
        yield None
        return
    async with thaw(pool, reach, gone) as whole:
        yield whole


def reads(
    of: Callable[[Given], Reach], *, enough: Callable[[Any, Given, Sequence[Gone], datetime | None], bool] | None = None
) -> Callable[[Callable[Concatenate[C, P], Awaitable[T]]], Callable[Concatenate[C, P], Awaitable[T]]]:
    """Make a reading of the log complete: what was released is read from the archive, or is an error.

    Args:
        of: what it looks at, by its arguments.
        enough: whether a result is complete though segments are gone: a page of the newest.
    """

    def decorated(
        function: Callable[Concatenate[C, P], Awaitable[T]],
    ) -> Callable[Concatenate[C, P], Awaitable[T]]:
        signature = inspect.signature(function)

        @wraps(function)
        async def read(pool: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if _INSIDE.get() or getattr(pool, "is_thawed", False):
                return await function(pool, *args, **kwargs)
            given = _given(signature, pool, args, kwargs)
            reach = of(given)
            thaw = _ARCHIVES.get(pool) if isinstance(pool, asyncpg.Pool) else None
            gone = await released_in(pool, reach, is_thorough=thaw is not None)
            if not gone or enough is not None:
                failure, result = await _tried(function(pool, *args, **kwargs))
                # Behind the reading: what is released while it goes on must not be missed.
                gone = await released_in(pool, reach, is_thorough=thaw is not None)
                if failure is not None and not gone:
                    raise failure
                if not gone:
                    return cast(T, result)
                if failure is None and enough is not None and enough(result, given, gone, await released_until(pool)):
                    return cast(T, result)
            if thaw is None or not isinstance(pool, asyncpg.Pool):
                raise await unavailable(pool, gone[0])
            async with thaw(pool, reach, gone) as whole:
                return await function(cast(C, whole), *args, **kwargs)

        read.__dict__["reads"] = of
        return read

    return decorated


async def _tried(reading: Awaitable[T]) -> tuple[Exception | None, T | None]:
    """Return what a reading gives, or why it failed over rows that are not there. Readings within it are not looked at:
    they need no more than it does."""
    token = _INSIDE.set(True)
    try:
        return None, await reading
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        return error, None
    finally:
        _INSIDE.reset(token)


def _given(signature: inspect.Signature, pool: object, args: Sequence[Any], kwargs: Given) -> dict[str, Any]:
    bound = signature.bind(pool, *args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    for name in ("filters", "given"):
        if isinstance(given.get(name), Mapping):
            given |= given[name]
    return given


def of_given(given: Given) -> Reach:
    """Return the reach of a reading by its `session_id`, else `run_id`, else `packet_id`; all of the log without."""
    if given.get("session_id") is not None:
        return Reach(sessions=[given["session_id"]])
    if given.get("run_id") is not None:
        return Reach(runs=[given["run_id"]])
    if given.get("packet_id") is not None:
        return Reach(packets=[given["packet_id"]])
    return Reach()


def of_page(given: Given) -> Reach:
    """Return the reach of a page in the order of the log, behind `after`."""
    reach, after = of_given(given), given.get("after")
    wanted = given.get("filters", given.get("given", {}))
    page = Page(wanted, after, given["limit"], given.get("newest", False))
    if after is None or not reach.is_whole or page.newest:
        return replace(reach, page=page)
    others = (LogRange(shard, 1) for shard in range(after[0] + 1, _SHARDS))
    return Reach(ranges=[LogRange(after[0], after[1] + 1), *others], page=page)


def of_places(given: Given) -> Reach:
    """Return the reach of a reading of `places`, or one `position` or `place`."""
    return Reach(places=given["places"] if "places" in given else [given.get("position") or given["place"]])


def since(given: Given) -> Reach:
    """Return the reach of what came at `since` or later."""
    return Reach(since=given["since"])


def is_newest_page(rows: Sequence[Any], given: Given, gone: Sequence[Gone], until: datetime | None) -> bool:
    """Whether a page by time, newest first, is full before it comes to what was released."""
    names = ("judged_at", "answered_at", "at")
    times = [
        row[0] if isinstance(row, tuple) else next(getattr(row, one) for one in names if hasattr(row, one))
        for row in rows
    ]
    return len(rows) == given["limit"] and until is not None and all(at > until for at in times)


def is_last_page(rows: Sequence[Any], given: Given, gone: Sequence[Gone], until: datetime | None) -> bool:
    """Whether a page against the order of the log is full before it comes to what was released."""
    if not given.get("newest") or len(rows) < given["limit"]:
        return False
    shard = min(row.shard for row in rows)
    ends = [one.last for one in gone if one.shard == shard]
    return all(one.shard <= shard for one in gone) and all(
        row.shard > shard or row.seq > max(ends, default=0) for row in rows
    )

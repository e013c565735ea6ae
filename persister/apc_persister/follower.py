"""Fills the projections that may lag behind the log: after commit, in pieces, each from its own place in each shard.

A projection is a function of the database that takes the entries of a shard from one seq to another. Its place moves in
the transaction that fills it, so that each entry counts once, whatever ends in between. One process at a time fills a
projection; the writers wait for none of it. Its commits do not wait for the disk: a crash of the server takes back
the rows together with the place, and they are filled again.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from apc_bus.concurrency import Backoff, reason_of
from apc_bus.database import DATABASE_AWAY, is_away
from apc_bus.telemetry import get_logger
from apc_log.heads import AnyConnection, read_ends
from apc_persister.errors import ProjectionIncomplete
from apc_persister.transaction import OPEN_SEGMENTS


@dataclass(frozen=True, slots=True)
class Projection:
    """Tables of schema apc_log that follow from the log alone, and the function that fills them."""

    name: str
    """In table `followed`; another name is filled from the first entry on, which must not have been released."""
    tables: tuple[str, ...]
    """What a rebuild empties."""
    fill: str
    """The function: of a shard, and of the first and the last seq."""


PROJECTIONS = (
    Projection("packet_search", ("packet_search",), "apc_log.index_packets"),
    Projection("run_cards", ("run_cards",), "apc_log.write_cards"),
    Projection("run_blocks", ("run_blocks",), "apc_log.note_blocks"),
    Projection("troubles", ("troubles", "trouble_minutes"), "apc_log.note_troubles"),
    Projection("answers", ("answers",), "apc_log.note_answers"),
    Projection(
        "agent_days",
        ("packet_minutes", "agent_days", "agent_latencies"),
        "apc_log.count_days",
    ),
)
"""Everything that is filled after commit (migrations/sql/0114_search.sql to 0116_agent_days.sql)."""
PIECE = 5_000
"""Entries that one transaction takes at most."""
INTERVAL = timedelta(seconds=1)
"""How far the projections lag while the follower keeps up. A look costs much the same for one entry as for hundreds."""
_LONG_S = 2.0
"""After a piece that took so long the next ones are smaller: a transaction has to end long before its timeout."""
_LONGEST_PAUSE_S = 30.0

_PLACES = "SELECT projection, shard, seq FROM apc_log.followed"
_BEGIN = """
INSERT INTO apc_log.followed (projection, shard, seq) SELECT $1, shard, 0 FROM unnest($2::integer[]) AS new(shard)
WHERE NOT EXISTS (SELECT FROM apc_log.followed AS one WHERE one.projection = $1 AND one.shard = new.shard)
AND NOT EXISTS (SELECT FROM apc_log.segments AS gone WHERE gone.shard = new.shard AND state IN ('released', 'expired'))
ON CONFLICT (projection, shard) DO NOTHING
"""
_RELEASED = """
SELECT shard, max(last_seq) AS last FROM apc_log.segments WHERE state IN ('released', 'expired')
AND shard = ANY ($2::integer[]) AND NOT EXISTS (
    SELECT FROM apc_log.followed AS one WHERE one.projection = $1 AND one.shard = segments.shard
) GROUP BY shard ORDER BY shard LIMIT 1
"""
# A lock of a row, which no agent's login can take: one on a number anybody can hold.
_TAKE_PLACES = """
WITH alone AS MATERIALIZED (
    SELECT FROM apc_log.followed WHERE projection = $1
    AND shard = (SELECT min(shard) FROM apc_log.followed WHERE projection = $1) FOR UPDATE SKIP LOCKED
)
SELECT shard, seq, set_config('synchronous_commit', 'off', true) FROM apc_log.followed
WHERE projection = $1 AND shard = ANY($2::integer[]) AND EXISTS (SELECT FROM alone) ORDER BY shard FOR UPDATE
"""
# One statement for all shards: with one for each, many shards cost many times as much, however little each has.
_FILL = """
SELECT {function}(shard, first, last)
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS piece(shard, first, last)
"""
_MOVE = """
UPDATE apc_log.followed AS one SET seq = piece.last
FROM unnest($2::integer[], $3::bigint[]) AS piece(shard, last) WHERE one.projection = $1 AND one.shard = piece.shard
"""
_FORGET = "DELETE FROM apc_log.followed"
# The writer keeps the ranges of sessions: behind are entries of a writer of an older release, and of the guard.
_UNBOUNDED = "SELECT shard FROM apc_log.shards WHERE bounded_seq < next_seq - 1 ORDER BY shard"
_BOUND = "SELECT apc_log.bound_sessions($1, $2)"
_FORGET_RANGES = (
    "UPDATE apc_log.shards SET bounded_seq = 0",
    "UPDATE apc_log.sessions SET first_seq = NULL, last_seq = NULL",
    "DELETE FROM apc_log.unopened_sessions",
)

AHEAD = 4
"""Segments that are kept open behind the one that is written to, once a log has YOUNG entries."""
YOUNG = 32_768
"""A log with fewer entries has one segment: most never have more."""
_UNUSED = """
SELECT shard FROM apc_log.shards WHERE moved_to IS NULL AND next_seq > $2 AND $1 > (
    SELECT count(*) FROM apc_guard.segments WHERE segments.shard = shards.shard AND first_seq > next_seq
) ORDER BY shard
"""

Failure = asyncpg.PostgresError | ProjectionIncomplete
"""Why a piece cannot be taken."""

log = get_logger(__name__)


class Follower:
    """Looks at every interval for entries that a projection has not taken, and takes them piece by piece.

    Between two pieces it rests for as long as the last one took: the writers of a busy log come first.
    """

    def __init__(
        self, pool: asyncpg.Pool, *, interval: timedelta = INTERVAL, segment_entries: int | None = None
    ) -> None:
        """Prepare it; with `segment_entries` it opens segments of the log ahead of the writers, of at most so many."""
        self._pool = pool
        self._segment_entries = segment_entries
        self._interval_s = interval.total_seconds()
        self._piece = PIECE

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until `stop` is set."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while not stop.is_set():
            try:
                took_s = await self.take_piece()
                pause_s = self._interval_s if took_s is None else min(took_s, self._interval_s)
                backoff.reset()
            except (*DATABASE_AWAY, ProjectionIncomplete) as error:
                if backoff.is_fresh:
                    log.warning("projections_lag", reason=reason_of(error))
                pause_s = backoff.take()
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

    async def take_piece(self) -> float | None:
        """Take a piece of each projection and shard that is behind.

        A piece that cannot be taken holds up its own projection and shard alone; its error is raised at the end.

        Returns the seconds it took when a projection is still behind, None when none is.
        """
        clock = asyncio.get_running_loop().time
        began, is_behind = clock(), False
        failed: Failure | None = None
        async with self._pool.acquire() as connection:
            if self._segment_entries is not None:
                await open_ahead(connection, self._segment_entries)
            ends, places = await read_ends(connection), await _read_places(connection)
            for projection in PROJECTIONS:
                behind = {shard: end for shard, end in ends.items() if places.get((projection.name, shard), 0) < end}
                if behind:
                    has_more, error = await self._take_each(connection, projection, behind)
                    is_behind, failed = is_behind or has_more, failed or error
            is_behind |= await bound_sessions(connection, self._piece)
        if failed is not None:
            raise failed
        return clock() - began if is_behind else None

    async def _take_each(
        self, connection: AnyConnection, projection: Projection, ends: Mapping[int, int]
    ) -> tuple[bool, Failure | None]:
        """Take a piece of these shards together; after an error one by one, so that the others are taken.

        Returns whether there is more, and the error of a piece that cannot be taken.
        """
        try:
            return await self._take(connection, projection, ends), None
        except (asyncpg.PostgresError, ProjectionIncomplete) as error:
            if is_away(error):
                raise
            if len(ends) == 1:
                return False, error
        each = [await self._take_each(connection, projection, {shard: end}) for shard, end in ends.items()]
        return any(has_more for has_more, _ in each), next((error for _, error in each if error is not None), None)

    async def _take(self, connection: AnyConnection, projection: Projection, ends: Mapping[int, int]) -> bool:
        """Take a piece; return whether there is more. The next piece is smaller when this one took long."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with connection.transaction():
                taken = await fill(connection, projection, ends, self._piece)
        except DATABASE_AWAY:
            self._piece = max(1, self._piece // 4)
            raise
        if clock() - began > _LONG_S:
            self._piece = max(1, self._piece // 2)
        elif taken:
            self._piece = min(PIECE, 2 * self._piece)
        return bool(taken) and any(taken.get(shard, 0) < end for shard, end in ends.items())

    async def catch_up(self) -> None:
        """Take everything that is in the log now, without a pause."""
        while await self.take_piece() is not None:
            pass


async def _read_places(connection: AnyConnection) -> Mapping[tuple[str, int], int]:
    return {(row["projection"], row["shard"]): row["seq"] for row in await connection.fetch(_PLACES)}


async def fill(
    connection: AnyConnection, projection: Projection, ends: Mapping[int, int], piece: int = PIECE
) -> dict[int, int]:
    """Take the next piece, of these shards at most up to their ends, in the transaction of the connection.

    Returns the last seq that was taken by shard; nothing while another process fills the projection.

    Raises:
        ProjectionIncomplete: it has no place in a shard yet, whose first entries were released from the database.
    """
    places = await _take_places(connection, projection, ends)
    if len(places) < len(ends):
        if await connection.execute(_BEGIN, projection.name, list(ends)) != "INSERT 0 0":
            places = await _take_places(connection, projection, ends)
        for row in await connection.fetch(_RELEASED, projection.name, list(ends)) if len(places) < len(ends) else ():
            raise ProjectionIncomplete(projection.name, row["shard"], row["last"])
    places = {shard: place for shard, place in places.items() if place < ends[shard]}
    if not places:
        return {}
    share = max(1, piece // len(places))
    lasts = {shard: min(place + share, ends[shard]) for shard, place in places.items()}
    firsts = [place + 1 for place in places.values()]
    await connection.execute(_FILL.format(function=projection.fill), list(lasts), firsts, list(lasts.values()))
    await connection.execute(_MOVE, projection.name, list(lasts), list(lasts.values()))
    return lasts


async def _take_places(connection: AnyConnection, projection: Projection, shards: Iterable[int]) -> dict[int, int]:
    rows = await connection.fetch(_TAKE_PLACES, projection.name, list(shards))
    return {row["shard"]: row["seq"] for row in rows}


async def bound_sessions(connection: AnyConnection, piece: int = PIECE) -> bool:
    """Take the next piece of each shard into the ranges of its sessions; return whether there is more.

    The writer of the shard waits meanwhile: both hold the lock on its head.
    """
    is_behind = False
    for row in await connection.fetch(_UNBOUNDED):
        is_behind |= await connection.fetchval(_BOUND, row["shard"], piece)
    return is_behind


async def empty_projections(connection: AnyConnection) -> None:
    """Empty every projection: the follower fills it again from the first entry. Needs the rights of apc_owner."""
    await connection.execute(_FORGET)
    for statement in _FORGET_RANGES:
        await connection.execute(statement)
    for projection in PROJECTIONS:
        for table in projection.tables:
            await connection.execute(f"DELETE FROM apc_log.{table}")


async def open_ahead(connection: AnyConnection, most_entries: int) -> None:
    """Open segments of every shard that has fewer than AHEAD of them; one has at most so many entries."""
    for row in await connection.fetch(_UNUSED, AHEAD, YOUNG):
        await connection.fetchval(OPEN_SEGMENTS, row["shard"], AHEAD, most_entries)

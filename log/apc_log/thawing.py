"""Reads rows of the archive and of the database together: in temporary tables, by the statements of the log."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from uuid import UUID

import asyncpg

from apc_bus.settings import ArchiveSettings
from apc_log.archive import Archive, Manifest, place_of
from apc_log.cold import ColdEngine, ColdLog, Record, open_cold
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import (
    LAST,
    AnyConnection,
    Gone,
    Page,
    Reach,
    Sought,
    attach_archive,
    log_name_of,
    released_in,
    sessions_here,
)
from apc_log.queries.packet_pages import LISTED
from apc_log.queries.packets import narrowed

# Cold and hot together: the rows of what is asked for in temporary tables, beside views and functions as the log has
# them, so that a reading gives what it gave before the release. They end with it.

_TABLES = ("agent_packets", "packet_events", "packet_lineage", "coordination_events", "packet_conflicts", "packet_ids")
_OF_PAGE = ("agent_packets", "packet_events", "packet_ids")
"""The tables that pages of packets name, themselves and by views; the last one by a filter alone."""
_ABOVE = ("packets", "packet_transitions", "packet_recipient_state", "packet_stale")
_ABOVE_PAGE = ("packet_transitions", "packet_stale")
_SEARCHED = ("packet_search", "packet_words", "packet_names", "index_packets")
_SOUGHT = re.compile(rf"\bapc_log\.({'|'.join(_SEARCHED)})\b")
# TRANSFERs and EVALs that stay have no rows here.
_SEARCHED_HERE = """
SELECT shard, seq FROM unnest($1::integer[], $2::bigint[]) AS place(shard, seq)
JOIN apc_log.packet_search USING (shard, seq)
"""
_THAWED = re.compile(rf"\bapc_log\.({'|'.join((*_TABLES, *_ABOVE))}|packet_states)\b")
# Over several databases the tables are made like those of home, which "apc_log" in quotes names, and filled from all.
_VIEWS = """
SELECT name, pg_get_viewdef(format('%I.%I', 'apc_log', name)::regclass) FROM unnest($1::text[]) AS name
"""
_BODIES = """
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'apc_log'::regnamespace AND proname = $1
"""
_COLUMNS_OF = """
SELECT attrelid::regclass::text, array_agg(attname::text ORDER BY attnum) FROM pg_attribute
WHERE attrelid = ANY (SELECT format('%I.%I', 'apc_log', name)::regclass FROM unnest($1::text[]) AS name)
  AND attnum > 0 AND NOT attisdropped AND attgenerated = '' GROUP BY attrelid
"""
_INDEXES = {
    "agent_packets": ("session_id, packet_id", "parent_packet_id", "cause_packet_id", "shard, seq"),
    "packet_events": ("session_id, packet_id", "shard, seq"),
    "packet_ids": ("session_id, packet_id",),
}
_MOST_UNINDEXED = 400
"""Rows of a table that are read without an index: to make one takes longer than a page of packets with their hops."""
_MOST_MANIFESTS = 512
_SHARDS_HERE = "SELECT shard FROM apc_log.shards"
# What the database has between the released ranges: each has its own index scan.
_HOT_PAGE = """
SELECT found.* FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS hot(shard, first, last)
CROSS JOIN LATERAL (
    SELECT packet.shard, packet.seq, packet.session_id, packet.packet_id FROM apc_log.agent_packets AS packet
    WHERE packet.shard = hot.shard AND packet.seq BETWEEN hot.first AND hot.last {narrowed}
    ORDER BY packet.shard {order}, packet.seq {order} LIMIT {limit}
) AS found ORDER BY found.shard {order}, found.seq {order} LIMIT {limit}
"""
_NOT_GONE = """
NOT EXISTS (SELECT FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS gone(shard, first, last)
            WHERE gone.shard = one.shard AND one.seq BETWEEN gone.first AND gone.last)
"""


def read_archive(pool: asyncpg.Pool, settings: ArchiveSettings) -> None:
    """Let readings of the log through this pool go on in the archive of the settings."""
    attach_archive(pool, _Reader(settings).thaw)


class _Reader:
    """Reads the archive for a pool; keeps what is the same for each reading."""

    def __init__(self, settings: ArchiveSettings) -> None:
        self._settings = settings
        self._opened: dict[str, Archive] = {}
        self._manifests: dict[tuple[str, str], Manifest] = {}
        """Origin and digest -> what has this digest."""
        self._duckdb: ColdEngine | None = None
        self._scheme: Scheme | None = None

    @asynccontextmanager
    async def thaw(self, pool: asyncpg.Pool, reach: Reach, gone: Sequence[Gone]) -> AsyncIterator[asyncpg.Pool]:
        """Give what takes statements as the pool does, and reads the rows of a reach, archived ones too.

        Raises:
            ArchiveUnavailable, ArchiveDiffers: a segment or an object of it cannot be read; rows have expired.
            ArchiveError: DuckDB is not installed, or the reading would need the whole log.
        """
        name = str(await log_name_of(pool))
        archive = self._opened.setdefault(name, self._opened.get(name) or Archive.open(self._settings, name))
        reach = reach if _is_page(reach) else replace(reach, page=None)
        is_part = reach.page is not None or reach.sought is not None
        if not is_part and all(one is None for one in (reach.sessions, reach.runs, reach.packets, reach.places)):
            place = place_of(archive.origin(gone[0].shard), gone[0].first)
            raise ArchiveUnavailable(place, None, "only sessions, runs and packets are looked for in the archive")
        sessions = set(reach.sessions or ())
        if not is_part:
            async with self._open(archive, gone) as cold:
                sessions |= await cold.sessions(reach)
            sessions |= await sessions_here(pool, reach)
            gone = gone if reach.is_everywhere else await released_in(pool, Reach(sessions=sessions))
            if not gone:
                yield pool
                return
        async with pool.acquire() as connection, self._open(archive, gone) as cold:
            self._scheme = self._scheme or await Scheme.read(connection)
            bounds = [one.shard for one in gone], [one.first for one in gone], [one.last for one in gone]
            transaction = connection.transaction()
            await transaction.start()
            try:
                thawed = Thawed(connection, self._scheme)
                await thawed.prepare(reach)
                if reach.sought is not None:
                    await thawed.load_sought(cold, reach.sought, bounds)
                elif reach.page is not None:
                    await thawed.load_page(cold, reach.page, bounds)
                else:
                    await thawed.load(await cold.rows_of(sessions))
                    await thawed.copy("one.session_id = ANY ($4::text[])", bounds, list(sessions))
                    if reach.is_everywhere:
                        await thawed.load_conflicts(cold, sessions, reach.packets or (), bounds)
                await thawed.index()
                if reach.sought is not None:
                    await thawed.fill_search()
                yield cast(asyncpg.Pool, thawed)
            finally:
                await transaction.rollback()

    @asynccontextmanager
    async def _open(self, archive: Archive, gone: Sequence[Gone]) -> AsyncIterator[ColdLog]:
        self._duckdb = self._duckdb or ColdEngine()
        while len(self._manifests) > max(_MOST_MANIFESTS, len(gone)):
            self._manifests.pop(next(iter(self._manifests)))
        async with open_gone(archive, gone, self._manifests, self._duckdb) as cold:
            yield cold


def _is_page(reach: Reach) -> bool:
    """Whether packets of a page are wanted alone. Verdicts are those on arrival in the archive: by them whole sessions
    are read."""
    return reach.page is not None and all(reach.page.filters.get(one) is None for one in ("verdict", "refusal_code"))


@asynccontextmanager
async def open_gone(
    archive: Archive,
    gone: Sequence[Gone],
    manifests: dict[tuple[str, str], Manifest] | None = None,
    duckdb: ColdEngine | None = None,
) -> AsyncIterator[ColdLog]:
    """Give a reader of these released segments, as `open_cold`.

    `manifests` are those that were read before, by origin and digest; others are added. Raises ArchiveUnavailable,
    ArchiveDiffers.
    """
    read, known = list[Manifest](), {} if manifests is None else manifests
    for one in gone:
        origin = archive.origin(one.shard)
        if one.is_expired:
            raise ArchiveUnavailable(place_of(origin, one.first), None, "its rows have expired")
        manifest = None if one.manifest is None else known.get((origin, one.manifest))
        if manifest is None:
            manifest = await archive.read_manifest(one.shard, one.first, one.manifest)
            known[origin, manifest.sha256] = manifest
        read.append(manifest)
    async with open_cold(archive, read, duckdb) as cold:
        yield cold


Bounds = tuple[list[int], list[int], list[int]]
"""Shards, first and last entries of segments."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """How the tables, views and functions of the log are made as temporary ones."""

    columns: Mapping[str, Sequence[str]]
    """Table -> its columns, but for those that are computed."""
    above: Mapping[str, str]
    """View or function -> the statement that makes it."""

    @classmethod
    async def read(cls, connection: AnyConnection) -> "Scheme":
        """Return it as it is in the database."""
        rows = await connection.fetch(_COLUMNS_OF, _TABLES)
        columns = {row[0].rpartition(".")[2]: row[1] for row in rows}
        names = (*_ABOVE, "packet_words", "packet_names")
        views = {row[0]: _sought(row[1]) for row in await connection.fetch(_VIEWS, names)}
        above = {view: f"CREATE TEMPORARY VIEW {view} AS {views[view]}" for view in names}
        for function in ("packet_states", "index_packets"):
            found = await connection.fetch(_BODIES, function)
            above[function] = "\n".join(f"{_sought(row[0])};" for row in found)
        return cls(columns, above)


class Thawed:
    """Takes statements as a pool does, on one connection whose temporary tables stand for those of the log.

    Args:
        connection: in a transaction, which ends with the tables.
        scheme: how they are made.
    """

    is_thawed = True

    def __init__(self, connection: AnyConnection, scheme: Scheme) -> None:
        self._connection = connection
        self._columns = scheme.columns
        self._above = scheme.above
        self._tables: Sequence[str] = ()
        self._with_search = False
        self._lock = asyncio.Lock()

    async def prepare(self, reach: Reach) -> None:
        """Make the tables, and what is above them, at once: all of them, or what a page or a search needs."""
        above: Collection[str] = (*_ABOVE, "packet_states")
        self._tables = _TABLES
        made = list[str]()
        if reach.sought is not None:
            self._tables, self._with_search = _OF_PAGE, True
            above = ("packets", *_ABOVE_PAGE, "packet_states", "packet_words", "packet_names", "index_packets")
            made.append('CREATE TEMPORARY TABLE packet_search (LIKE "apc_log".packet_search, UNIQUE (shard, seq));')
        elif reach.page is not None:
            above = (*_ABOVE_PAGE, "packet_states")
            self._tables = _OF_PAGE if reach.page.filters.get("packet_id") is not None else _OF_PAGE[:-1]
        made += [
            f'CREATE TEMPORARY TABLE {table} (LIKE "apc_log".{table} INCLUDING DEFAULTS INCLUDING GENERATED);'
            for table in self._tables
        ]
        script = ["SET TRANSACTION READ WRITE;", *made, *(self._above[one] for one in above)]
        await self._connection.execute("\n".join(script))

    async def index(self) -> None:
        """Make the indexes of the tables that have many rows; the transaction reads alone from then on."""
        counted = ", ".join(
            f"(SELECT count(*) FROM (SELECT FROM pg_temp.{table} LIMIT {_MOST_UNINDEXED + 1}) AS few) AS {table}"
            for table in self._tables
        )
        row = await self._connection.fetchrow(f"SELECT {counted}")
        made = [
            f"CREATE INDEX ON pg_temp.{table} ({columns})"
            for table, indexes in _INDEXES.items()
            for columns in indexes
            if table in self._tables and row is not None and row[table] > _MOST_UNINDEXED
        ]
        await self._connection.execute(";\n".join([*made, "SET TRANSACTION READ ONLY"]))

    async def load(self, tables: Mapping[str, Sequence[Record]]) -> None:
        """Add archived rows."""
        for table, records in tables.items():
            if table not in self._tables:
                continue
            columns = [one for one in self._columns[table] if one != "entry_version"]
            values = ", ".join(f"${at}" for at in range(1, len(columns) + 1))
            statement = f"INSERT INTO pg_temp.{table} ({', '.join(columns)}) VALUES ({values})"
            rows = [tuple(one["body" if name == "body_stored" else name] for name in columns) for one in records]
            if rows:
                await self._connection.executemany(statement, rows)

    async def copy(self, clause: str, bounds: Bounds, *values: Any) -> None:
        """Add the rows of the database that fit, without those of the released segments, which are here already."""
        for table in self._tables:
            await self._copy(table, clause, bounds, *values)

    async def load_conflicts(
        self, cold: ColdLog, sessions: Collection[str], packets: Collection[UUID], bounds: Bounds
    ) -> None:
        """Add the conflicts of these packets in other sessions, or in none."""
        for packet in packets:
            found = await cold.conflicts(packet_id=packet)
            await self.load({"packet_conflicts": [one for one in found if one["session_id"] not in sessions]})
        others = "one.packet_id = ANY ($4::uuid[]) AND one.session_id = ANY ($5::text[]) IS NOT TRUE"
        await self._copy("packet_conflicts", others, bounds, list(packets), list(sessions))

    async def load_sought(self, cold: ColdLog, wanted: Sought, bounds: Bounds) -> None:
        """Add archived packets that the search does not have here, with what is about them."""
        found = await cold.sought(wanted)
        places = [one["shard"] for one in found], [one["seq"] for one in found]
        here = {(row[0], row[1]) for row in await self._connection.fetch(_SEARCHED_HERE, *places)}
        packets = [one for one in found if (one["shard"], one["seq"]) not in here]
        await self.load(await cold.rows_of_packets(packets, self._tables))
        about = "(one.session_id, one.packet_id) IN (SELECT * FROM unnest($4::text[], $5::uuid[]))"
        named = [(one["session_id"], one["packet_id"]) for one in packets]
        await self._copy("packet_events", about, bounds, [one for one, _ in named], [one for _, one in named])

    async def fill_search(self) -> None:
        """Make the rows of the search, as the follower does; it looks things up by the indexes."""
        index = "SELECT pg_temp.index_packets(shard, min(seq), max(seq)) FROM pg_temp.agent_packets GROUP BY shard"
        await self._connection.execute(index)

    async def load_page(self, cold: ColdLog, page: Page, bounds: Bounds) -> None:
        """Add what a page of packets may hold, with what is about them."""
        given = {name: value for name, value in page.filters.items() if value is not None}
        packets = await cold.packets(after=page.after, newest=page.newest, limit=page.limit, **given)
        await self.load(await cold.rows_of_packets(packets, self._tables))
        last = (packets[-1]["shard"], packets[-1]["seq"]) if len(packets) == page.limit else None
        rows = await self._hot_places(page, given, bounds, last)
        there = "(one.shard, one.seq) IN (SELECT * FROM unnest($4::integer[], $5::bigint[]))"
        await self._copy("agent_packets", there, bounds, [row["shard"] for row in rows], [row["seq"] for row in rows])
        named = [(one["session_id"], one["packet_id"]) for one in [*packets, *map(dict, rows)]]
        about = "(one.session_id, one.packet_id) IN (SELECT * FROM unnest($4::text[], $5::uuid[]))"
        for table in self._tables[1:]:
            await self._copy(table, about, bounds, [one for one, _ in named], [one for _, one in named])

    async def _hot_places(
        self, page: Page, given: Mapping[str, Any], bounds: Bounds, last: tuple[int, int] | None
    ) -> list[asyncpg.Record]:
        """Return the packets of the database that may be on a page, up to `last`: no later archived one is on it."""
        ranges = ranges_between(bounds, {row["shard"] for row in await self._connection.fetch(_SHARDS_HERE)})
        clauses, values = narrowed(given, LISTED)
        for place, sign in ((page.after, "<" if page.newest else ">"), (last, ">" if page.newest else "<")):
            if place is not None:
                clauses.append(f"(packet.shard, packet.seq) {sign} (${len(values) + 1}, ${len(values) + 2})")
                values += place
        clause = re.sub(r"\$(\d+)", lambda number: f"${int(number[1]) + 3}", "".join(f" AND {one}" for one in clauses))
        order = "DESC" if page.newest else "ASC"
        statement = _HOT_PAGE.format(narrowed=clause, order=order, limit=int(page.limit))
        return list(await self._connection.fetch(statement, *ranges, *values))

    async def _copy(self, table: str, clause: str, bounds: Bounds, *values: Any) -> None:
        columns = ", ".join(self._columns[table])
        await self._connection.execute(
            f"INSERT INTO pg_temp.{table} ({columns}) SELECT {columns} FROM apc_log.{table} AS one "
            f"WHERE {clause} AND {_NOT_GONE}",
            *bounds,
            *values,
        )

    def _own(self, statement: str) -> str:
        return _sought(statement) if self._with_search else _thawed(statement)

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a statement."""
        async with self._lock:
            return list(await self._connection.fetch(self._own(statement), *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        """Return the first row of a statement."""
        async with self._lock:
            return await self._connection.fetchrow(self._own(statement), *values)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        """Return the first value of a statement."""
        async with self._lock:
            return await self._connection.fetchval(self._own(statement), *values)

    def cursor(self, statement: str, *values: Any, prefetch: int) -> Any:
        """Return a cursor of a statement, in the transaction of the tables."""
        return self._connection.cursor(self._own(statement), *values, prefetch=prefetch)

    @asynccontextmanager
    async def acquire(self, **options: Any) -> AsyncIterator["Thawed"]:
        """Lend itself."""
        yield self


def ranges_between(bounds: Bounds, shards: Collection[int]) -> Bounds:
    """Return the ranges of these shards that are not of the segments.

    >>> ranges_between(([0, 0], [1, 11], [10, 20]), {0, 1})
    ([0, 1], [21, 1], [9223372036854775807, 9223372036854775807])
    """
    found: Bounds = ([], [], [])
    gone = sorted(zip(*bounds, strict=True))
    for shard in sorted(shards):
        first = 1
        for _, begin, end in [one for one in gone if one[0] == shard]:
            if begin > first:
                _add(found, shard, first, begin - 1)
            first = end + 1
        _add(found, shard, first, LAST)
    return found


def _add(ranges: Bounds, *values: int) -> None:
    for column, value in zip(ranges, values, strict=True):
        column.append(value)


def _thawed(statement: str) -> str:
    return _THAWED.sub(r"pg_temp.\1", statement)


def _sought(statement: str) -> str:
    return _SOUGHT.sub(r"pg_temp.\1", _thawed(statement))

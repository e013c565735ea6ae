"""Reads rows of the archive and of the database together: in temporary tables, by the statements of the log."""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast
from uuid import UUID

import asyncpg

from apc_bus.settings import ArchiveSettings
from apc_log.archive import Archive, place_of
from apc_log.cold import ColdLog, Record, open_cold
from apc_log.errors import ArchiveUnavailable
from apc_log.heads import AnyConnection, Gone, Page, Reach, attach_archive, origin_of, released_in, sessions_here
from apc_log.queries.packet_pages import LISTED
from apc_log.queries.packets import narrowed

# Cold and hot together: the rows of what is asked for in temporary tables, beside views and functions as the log has
# them, so that a reading gives what it gave before the release. They end with it.

_TABLES = ("agent_packets", "packet_events", "packet_lineage", "coordination_events", "packet_conflicts", "packet_ids")
_ABOVE = ("packets", "packet_transitions", "packet_recipient_state", "packet_stale")
_THAWED = re.compile(rf"\bapc_log\.({'|'.join((*_TABLES, *_ABOVE))}|packet_states)\b")
_VIEW = "SELECT pg_get_viewdef(format('apc_log.%I', $1::text)::regclass)"
_BODIES = """
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'apc_log'::regnamespace AND proname = 'packet_states'
"""
_COLUMNS_OF = """
SELECT attname FROM pg_attribute WHERE attrelid = format('apc_log.%I', $1::text)::regclass AND attnum > 0
AND NOT attisdropped AND attgenerated = '' ORDER BY attnum
"""
_INDEXES = {
    "agent_packets": ("session_id, packet_id", "parent_packet_id", "cause_packet_id", "shard, seq"),
    "packet_events": ("session_id, packet_id", "shard, seq"),
    "packet_ids": ("session_id, packet_id",),
}
_NOT_GONE = """
NOT EXISTS (SELECT FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS gone(shard, first, last)
            WHERE gone.shard = one.shard AND one.seq BETWEEN gone.first AND gone.last)
"""


def read_archive(pool: asyncpg.Pool, settings: ArchiveSettings) -> None:
    """Let readings of the log through this pool go on in the archive of the settings."""
    attach_archive(pool, partial(_thaw, settings, {}))


@asynccontextmanager
async def _thaw(
    settings: ArchiveSettings, opened: dict[str, Archive], pool: asyncpg.Pool, reach: Reach, gone: Sequence[Gone]
) -> AsyncIterator[asyncpg.Pool]:
    """Give what takes statements as the pool does, and reads the rows of a reach, archived ones too.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: a segment or an object of it cannot be read; rows have expired.
        ArchiveError: DuckDB is not installed, or the reading would need the whole log.
    """
    name = (await origin_of(pool, gone[0].shard)).rpartition("/")[0]
    archive = opened.setdefault(name, opened.get(name) or Archive.open(settings, name))
    # Verdicts are those on arrival there: by them whole sessions are read.
    is_page = reach.page is not None and all(reach.page.filters.get(one) is None for one in ("verdict", "refusal_code"))
    if not is_page and all(one is None for one in (reach.sessions, reach.runs, reach.packets, reach.places)):
        place = place_of(archive.origin(gone[0].shard), gone[0].first)
        raise ArchiveUnavailable(place, None, "only sessions, runs and packets are looked for in the archive")
    sessions = set(reach.sessions or ())
    if not is_page:
        async with open_gone(archive, gone) as cold:
            sessions |= await cold.sessions(reach)
        sessions |= await sessions_here(pool, reach)
        gone = gone if reach.is_everywhere else await released_in(pool, Reach(sessions=sessions))
    async with pool.acquire() as connection, open_gone(archive, gone) as cold:
        transaction = connection.transaction()
        await transaction.start()
        try:
            await connection.execute("SET TRANSACTION READ WRITE")
            thawed = Thawed(connection)
            await thawed.prepare()
            await connection.execute("SET TRANSACTION READ ONLY")  # temporary tables can be filled all the same
            bounds = [one.shard for one in gone], [one.first for one in gone], [one.last for one in gone]
            if is_page and reach.page is not None:
                await thawed.load_page(cold, reach.page, bounds)
            else:
                await thawed.load(await cold.rows_of(sessions))
                await thawed.copy("one.session_id = ANY ($4::text[])", bounds, list(sessions))
                if reach.is_everywhere:
                    await thawed.load_conflicts(cold, sessions, reach.packets or (), bounds)
            yield cast(asyncpg.Pool, thawed)
        finally:
            await transaction.rollback()


@asynccontextmanager
async def open_gone(archive: Archive, gone: Sequence[Gone]) -> AsyncIterator[ColdLog]:
    """Give a reader of these released segments, as `open_cold`. Raises ArchiveUnavailable, ArchiveDiffers."""
    for one in gone:
        if one.is_expired:
            raise ArchiveUnavailable(place_of(archive.origin(one.shard), one.first), None, "its rows have expired")
    manifests = [await archive.read_manifest(one.shard, one.first, one.manifest) for one in gone]
    async with open_cold(archive, manifests) as cold:
        yield cold


Bounds = tuple[list[int], list[int], list[int]]
"""Shards, first and last entries of segments."""


class Thawed:
    """Takes statements as a pool does, on one connection whose temporary tables stand for those of the log."""

    is_thawed = True

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        self._columns: dict[str, list[str]] = {}
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Make the tables, views and functions."""
        for table in _TABLES:
            await self._connection.execute(
                f"CREATE TEMPORARY TABLE {table} (LIKE apc_log.{table} INCLUDING DEFAULTS INCLUDING GENERATED)"
            )
            self._columns[table] = [row[0] for row in await self._connection.fetch(_COLUMNS_OF, table)]
            for columns in _INDEXES.get(table, ()):
                await self._connection.execute(f"CREATE INDEX ON pg_temp.{table} ({columns})")
        for view in _ABOVE:
            text = await self._connection.fetchval(_VIEW, view)
            await self._connection.execute(f"CREATE TEMPORARY VIEW {view} AS {_thawed(text)}")
        for row in await self._connection.fetch(_BODIES):
            await self._connection.execute(_thawed(row[0]))

    async def load(self, tables: Mapping[str, Sequence[Record]]) -> None:
        """Add archived rows."""
        for table, records in tables.items():
            columns = [one for one in self._columns[table] if one != "entry_version"]
            values = ", ".join(f"${at}" for at in range(1, len(columns) + 1))
            statement = f"INSERT INTO pg_temp.{table} ({', '.join(columns)}) VALUES ({values})"
            rows = [tuple(one["body" if name == "body_stored" else name] for name in columns) for one in records]
            if rows:
                await self._connection.executemany(statement, rows)

    async def copy(self, clause: str, bounds: Bounds, *values: Any) -> None:
        """Add the rows of the database that fit, without those of the released segments, which are here already."""
        for table in _TABLES:
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

    async def load_page(self, cold: ColdLog, page: Page, bounds: Bounds) -> None:
        """Add what a page of packets may hold, with what is about them."""
        given = {name: value for name, value in page.filters.items() if value is not None}
        packets = await cold.packets(after=page.after, newest=page.newest, limit=page.limit, **given)
        await self.load(await cold.rows_of_packets(packets))
        clauses, values = narrowed(given, LISTED)
        at, order = len(values), "DESC" if page.newest else "ASC"
        clauses.append(re.sub(r"\$(\d)", lambda number: f"${at + int(number[1])}", _NOT_GONE))
        values += bounds
        if page.after is not None:
            clauses.append(f"(one.shard, one.seq) {'<' if page.newest else '>'} (${at + 4}, ${at + 5})")
            values += page.after
        where = " AND ".join(clauses).replace("packet.", "one.")
        rows = await self._connection.fetch(
            f"SELECT shard, seq, session_id, packet_id FROM apc_log.agent_packets AS one WHERE {where} "
            f"ORDER BY one.shard {order}, one.seq {order} LIMIT {int(page.limit)}",
            *values,
        )
        there = "(one.shard, one.seq) IN (SELECT * FROM unnest($4::integer[], $5::bigint[]))"
        await self._copy("agent_packets", there, bounds, [row["shard"] for row in rows], [row["seq"] for row in rows])
        named = [(one["session_id"], one["packet_id"]) for one in [*packets, *map(dict, rows)]]
        about = "(one.session_id, one.packet_id) IN (SELECT * FROM unnest($4::text[], $5::uuid[]))"
        for table in ("packet_events", "packet_lineage", "packet_ids"):
            await self._copy(table, about, bounds, [one for one, _ in named], [one for _, one in named])

    async def _copy(self, table: str, clause: str, bounds: Bounds, *values: Any) -> None:
        columns = ", ".join(self._columns[table])
        await self._connection.execute(
            f"INSERT INTO pg_temp.{table} ({columns}) SELECT {columns} FROM apc_log.{table} AS one "
            f"WHERE {clause} AND {_NOT_GONE}",
            *bounds,
            *values,
        )

    async def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Return the rows of a statement."""
        async with self._lock:
            return list(await self._connection.fetch(_thawed(statement), *values))

    async def fetchrow(self, statement: str, *values: Any) -> Any:
        """Return the first row of a statement."""
        async with self._lock:
            return await self._connection.fetchrow(_thawed(statement), *values)

    async def fetchval(self, statement: str, *values: Any) -> Any:
        """Return the first value of a statement."""
        async with self._lock:
            return await self._connection.fetchval(_thawed(statement), *values)

    @asynccontextmanager
    async def acquire(self, **options: Any) -> AsyncIterator["Thawed"]:
        """Lend itself."""
        yield self


def _thawed(statement: str) -> str:
    return _THAWED.sub(r"pg_temp.\1", statement)

"""Reads the archive of the log with DuckDB: records as the tables of the database give them, and proofs."""

import asyncio
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import finalize

import orjson

from apc_contracts.contract.contract import load_contract
from apc_contracts.errors import ExtraMissing
from apc_contracts.session.lifecycle import ADVANCE, LIFECYCLE
from apc_log.archive import BLOCK, OF_ENTRIES, SCHEMAS, Archive, Manifest, place_of
from apc_log.body_encryption import is_sealed
from apc_log.entries import BYTES_COLUMN, FLOATS, HASHES, JSON, TIME_LISTS, TIMES
from apc_log.errors import ArchiveDiffers, ArchiveError, ArchiveTooLarge, ArchiveUnavailable
from apc_log.heads import Reach, Sought
from apc_log.merkle import HASH_SIZE, fold, fold_bytes
from apc_log.offline_verifier import (
    COLUMNS,
    PROOF,
    VERSIONS,
    CheckFailed,
    PublicKey,
    leaf_hash,
    node_hash,
    parse_note,
    root_by_inclusion,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "512MB"
"""What DuckDB takes at most; sorts go to files beyond it."""


@contextmanager
def open_duckdb(folder: Path | None = None, memory: str = MEMORY, settings: str = "") -> Iterator["DuckDBPyConnection"]:
    """Give a DuckDB in memory that loads no extensions; what it cannot hold it writes below `folder`, if given.

    `settings` are further statements.

    Raises:
        ExtraMissing: DuckDB is not installed.
    """
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise ExtraMissing(error) from error
    with duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        connection.execute(f"SET memory_limit = '{memory}'; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        connection.execute("SET temp_directory = ?", [str(folder) if folder else ""])
        if settings:
            connection.execute(settings)
        yield connection


TALLIES = {
    "packets": "SELECT packet_type || '/' || verdict, count(*) FROM packet GROUP BY 1",
    "hops": "SELECT to_state, count(*) FROM hop GROUP BY 1",
    "transfers": "SELECT transfer_mode, count(*) FROM lineage GROUP BY 1",
}
"""What is counted -> the statement."""
_COUNTS = (
    "SELECT 'packet', count(*) FROM packet UNION ALL SELECT 'hop', count(*) FROM hop "
    "UNION ALL SELECT 'lineage', count(*) FROM lineage UNION ALL SELECT entry_kind, count(*) FROM other GROUP BY 1"
)


def count_entries(connection: "DuckDBPyConnection") -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    """Return the entries by kind, and the tallies, of the tables of a segment."""
    counted = {"": _COUNTS} | TALLIES
    found: dict[str, dict[str, int]] = {name: {} for name in counted}
    statement = " UNION ALL ".join(f"SELECT '{name}', * FROM ({one})" for name, one in counted.items())
    for name, key, count in connection.execute(statement).fetchall():
        found[name][key] = count
    return {kind: count for kind, count in found.pop("").items() if count}, found


def read_log_entries(connection: "DuckDBPyConnection") -> tuple[str, ...]:
    """Return the entries of kind `log` of a segment, in order."""
    rows = connection.execute("SELECT entry FROM other WHERE entry_kind = 'log' ORDER BY seq").fetchall()
    return tuple(entry for (entry,) in rows)


# Reading: records as the tables of the database give them, from the entries of archived segments.

Record = dict[str, Any]
"""Column -> value, as asyncpg gives a row of the entry's table: ids, times, hashes; JSON columns as text."""
_UUIDS = frozenset({"packet_id", "root_packet_id", "parent_packet_id", "cause_packet_id", "change_id"})
_FILTERS: Mapping[str, str] = {
    "run_id": "run_id = ?",
    "session_id": "session_id = ?",
    "task_id": "task_id = ?",
    "packet_id": "packet_id = ?",
    "packet_type": "packet_type = ?",
    "run_phase": "run_phase = ?",
    "trace_id": "root_packet_id = ?",
    "sender": "sender_agent_id = ?",
    "recipient": "list_contains(recipients, ?)",
    "verdict": "verdict = ?",
    "refusal_code": "refusal_code = ?",
    "generation": "generation = ?",
    "round": "round = ?",
}
"""Filter of `apc packet trace` and of the console -> clause over `packet.parquet`."""


def record_of(entry: str | bytes, body: bytes | None = None) -> Record:
    """Return an entry as the row of its table that it was made of.

    `kind` is that of the entry, as `entry_kind`; `body` are the bytes of a packet, `raw` those of a conflict.

    Raises:
        CheckFailed: it is no entry of a known kind and version.
    """
    try:
        kind, version, shard, seq, *values = orjson.loads(entry)
        columns, others = _columns_of(kind, version)
    except (ValueError, TypeError, KeyError) as error:
        raise CheckFailed(f"not an entry of a known kind and version: {error}") from None
    record: Record = {"entry_kind": kind, "entry_version": version, "shard": shard, "seq": seq}
    record.update(zip(columns, values, strict=True))
    for name, read in others:
        if record[name] is not None:
            record[name] = read(record[name])
    if kind in BYTES_COLUMN:
        record["body" if kind == "packet" else "raw"] = body
    return record


@cache
def _columns_of(kind: str, version: int) -> tuple[Sequence[str], Sequence[tuple[str, Callable[[Any], Any]]]]:
    """Return the columns of entries, and how those are read that stand there as something else. Raises KeyError."""
    columns = COLUMNS[kind, version]
    readings: Sequence[tuple[Collection[str], Callable[[Any], Any]]] = (
        (_UUIDS, UUID),
        (TIMES, datetime.fromisoformat),
        (TIME_LISTS, lambda times: [datetime.fromisoformat(one) for one in times]),
        (HASHES, bytes.fromhex),
        (JSON, lambda value: orjson.dumps(value).decode()),
        (FLOATS, float),
    )
    return columns, [(name, read) for name in columns for names, read in readings if name in names]


class ColdLog:
    """Reads archived segments of a log; made by `open_cold`. Its methods may run side by side.

    Each method answers from all of the segments that it was opened for, or raises.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: at opening, an object is missing, or has other bytes.
    """

    def __init__(self, archive: Archive, manifests: Sequence[Manifest], connection: "DuckDBPyConnection") -> None:
        self._archive = archive
        self._manifests = sorted(manifests, key=lambda one: (one.shard, one.first))
        self._connection = connection
        self._stack = AsyncExitStack()
        self._ready: dict[str, str] = {}
        """Table -> what it is read from, as SQL."""
        self._lock = asyncio.Lock()

    @property
    def manifests(self) -> Sequence[Manifest]:
        """Those of its segments, in the order of the log."""
        return self._manifests

    async def packets(
        self,
        *,
        after: tuple[int, int] | None = None,
        newest: bool = False,
        limit: int = 100,
        **filters: Any,
    ) -> list[Record]:
        """Return packets that match every filter, in the order of the log, or against it, behind `after`.

        Filters are those of `apc packet trace`, and sender, recipient, verdict, refusal_code, generation and round (the
        verdict and code as they were on arrival); None = any. Raises TypeError for a name that is no filter.
        """
        if unknown := filters.keys() - _FILTERS.keys():
            raise TypeError(f"no such filter: {', '.join(sorted(unknown))}")
        given = {name: value for name, value in filters.items() if value is not None}
        clauses, values = [_FILTERS[name] for name in given], [_sent(value) for value in given.values()]
        order = "DESC" if newest else "ASC"
        if after is not None:
            clauses.append(f"(shard, seq) {'<' if newest else '>'} (?, ?)")
            values += after
        where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
        if "packet_id" in given:
            places = await self._rows(
                "ids", "SELECT shard, seq FROM ids WHERE packet_id = ?", [_sent(given["packet_id"])]
            )
            if not places:
                return []
            where += f" AND (shard, seq) IN ({', '.join(f'({shard}, {seq})' for shard, seq in places)})"
        # Places first: bodies are read of the page alone.
        statement = f"SELECT shard, seq FROM packet {where} ORDER BY shard {order}, seq {order} LIMIT {int(limit)}"
        return await self._at(await self._rows("packet", statement, values))

    async def sought(self, wanted: Sought) -> list[Record]:
        """Return the newest packets that fit, by the time of their verdict. Raises ArchiveTooLarge."""
        clauses, values = ["packet_type <> 'HEARTBEAT'"], list[Any]()
        for clause, value in (
            ("run_id = ?", wanted.run_id),
            ("(sender_agent_id = ? OR list_contains(recipients, ?))", wanted.agent),
            ("(refusal_code = ? OR verdict = 'held')", wanted.code),
            ("judged_at >= ?::TIMESTAMP", _as_utc(wanted.since)),
            ("judged_at <= ?::TIMESTAMP", _as_utc(wanted.until)),
        ):
            if value is not None:
                clauses.append(clause)
                values += [value] * clause.count("?")
        statement = f"""
        SELECT shard, seq FROM packet WHERE {" AND ".join(clauses)}
        ORDER BY judged_at DESC, shard, seq LIMIT {int(wanted.most) + (not wanted.is_cut)}
        """
        places = await self._rows("packet", statement, values)
        if len(places) > wanted.most:
            raise ArchiveTooLarge(f"more than {wanted.most:,} archived packets fit")
        return await self._at(places)

    async def _at(self, places: Sequence[tuple[int, int]]) -> list[Record]:
        """Return the packets at these places, in this order."""
        found: dict[tuple[int, int], Record] = {}
        for shard in {shard for shard, _ in places}:
            numbers = [seq for one, seq in places if one == shard]
            statement = f"""
            SELECT entry, body FROM packet
            WHERE shard = {shard} AND seq BETWEEN {min(numbers)} AND {max(numbers)} AND seq IN ?
            """
            for row in await self._rows("packet", statement, [numbers]):
                record = record_of(*row)
                found[record["shard"], record["seq"]] = record
        return [found[shard, seq] for shard, seq in places]

    async def find_packet(self, packet_id: UUID) -> list[Record]:
        """Return session_id, shard, seq, packet_hash and payload_hash of every packet with this id."""
        names = ("session_id", "shard", "seq", "packet_hash", "payload_hash")
        statement = f"SELECT {', '.join(names)} FROM ids WHERE packet_id = ? ORDER BY shard, seq"
        rows = await self._rows("ids", statement, [packet_id.bytes])
        return [dict(zip(names, row, strict=True)) for row in rows]

    async def hops(
        self,
        *,
        session_ids: Collection[str] | None = None,
        packets: Collection[tuple[str, UUID]] | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return hops of whole sessions, or of these packets by session and id, in the order of the log."""
        if packets is not None:
            return await self._of_packets("hop", packets)
        return await self._of_sessions("hop", "true", session_ids or (), after, limit)

    async def lineage(self, packets: Collection[tuple[str, UUID]]) -> list[Record]:
        """Return the lineage blocks of these packets, in the order of the log."""
        return await self._of_packets("lineage", packets)

    async def transfers(self, protocol_id: str) -> list[Record]:
        """Return the lineage blocks that carry a protocol, in the order of the log."""
        statement = "SELECT entry FROM lineage WHERE protocol_id = ? ORDER BY shard, seq"
        return [record_of(*row) for row in await self._rows("lineage", statement, [protocol_id])]

    async def moves(
        self, session_ids: Collection[str], *, after: tuple[int, int] | None = None, limit: int | None = None
    ) -> list[Record]:
        """Return the transitions and barriers of these sessions, in the order of the log."""
        return await self._of_sessions("other", "entry_kind = 'coordination'", session_ids, after, limit)

    async def conflicts(
        self,
        *,
        session_ids: Collection[str] | None = None,
        packet_id: UUID | None = None,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return the inputs that took no id of these sessions, or of any with this packet id, in order."""
        clause = "entry_kind = 'conflict'"
        if packet_id is not None:
            clause += f" AND packet_id = unhex('{packet_id.hex}')"
        return await self._of_sessions("other", clause, session_ids, after, limit)

    async def replayed(self, session_id: str) -> AsyncIterator[list[Record]]:
        """Yield the packets, hops and transitions of a session in the order of the log, at most 10,000 at a time."""
        parts = [f"SELECT shard, seq, entry, body FROM {table} WHERE session_id = $1" for table in ("packet", "other")]
        parts[1] += " AND entry_kind = 'coordination'"
        parts.append("SELECT shard, seq, entry, NULL FROM hop WHERE session_id = $1")
        statement = f"SELECT entry, body FROM ({' UNION ALL '.join(parts)}) ORDER BY shard, seq"
        async for rows in self._parts(("packet", "hop", "other"), statement, [session_id]):
            yield [record_of(*row) for row in rows]

    async def children(self, session_id: str, above: Collection[UUID], *, limit: int = 500) -> list[Record]:
        """Return the packets that stand under these, as `apc packet tree` shows them: under their cause, else their
        parent. Each has `above` and `edge`."""
        statement = f"""
        SELECT entry, body FROM packet WHERE session_id = ? AND coalesce(cause_packet_id, parent_packet_id) IN ?
        ORDER BY shard, seq LIMIT {int(limit)}
        """
        if not above:
            return []
        rows = await self._rows("packet", statement, [session_id, [one.bytes for one in above]])
        found = [record_of(*row) for row in rows]
        for record in found:
            cause = record["cause_packet_id"]
            record["edge"] = "parent" if cause is None else "cause"
            record["above"] = record["parent_packet_id"] if cause is None else cause
        return found

    async def resting_on(self, session_id: str, parents: Collection[UUID], names: Collection[str]) -> list[Record]:
        """Return the packets of a session whose parent is one of these, or that refer to one of the names
        (`packet:ID`, hashes of artifacts, claims). Each has `refers_to` and `defines`."""
        statement = """
        SELECT entry, body, refers_to, defines FROM packet
        WHERE session_id = ? AND (parent_packet_id IN ? OR list_has_any(refers_to, ?)) ORDER BY shard, seq
        """
        given = [session_id, [one.bytes for one in parents] or [b""], list(names)]
        return await self._with_names(statement, given)

    async def with_names(self, session_id: str, packet_ids: Collection[UUID]) -> list[Record]:
        """Return these packets of a session, with `refers_to` and `defines`, in the order of the log."""
        statement = """
        SELECT entry, body, refers_to, defines FROM packet WHERE session_id = ? AND packet_id IN ? ORDER BY shard, seq
        """
        return await self._with_names(statement, [session_id, [one.bytes for one in packet_ids] or [b""]])

    async def _with_names(self, statement: str, given: Sequence[Any]) -> list[Record]:
        rows = await self._rows("packet", statement, given)
        return [
            record_of(entry, body) | {"refers_to": refers, "defines": defines} for entry, body, refers, defines in rows
        ]

    async def search(
        self, text: str, *, after: tuple[int, int] | None = None, limit: int = 100, **filters: Any
    ) -> list[Record]:
        """Return packets whose readable body holds a text, whatever its case; filters as for `packets`."""
        found: list[Record] = []
        while len(found) < limit:
            page = await self.packets(after=after, limit=_SEARCHED, **filters)
            found += [one for one in page if text.lower() in _readable(one["body"])]
            if len(page) < _SEARCHED:
                break
            after = page[-1]["shard"], page[-1]["seq"]
        return found[:limit]

    async def entries(self, shard: int, numbers: Collection[int]) -> list[tuple[int, bytes, bytes | None]]:
        """Return (seq, canonical bytes, bytes beside it) of these entries of a shard, for proofs and exports."""
        found: list[tuple[int, bytes, bytes | None]] = []
        for table in OF_ENTRIES:
            body = "body" if "body" in SCHEMAS[table] else "NULL"
            statement = f"SELECT seq, encode(entry), {body} FROM {table} WHERE shard = ? AND seq IN ?"
            found += await self._rows(table, statement, [shard, list(numbers) or [0]])
        return sorted(found)

    async def tally(self, name: str) -> dict[str, int]:
        """Return a tally summed over the segments, from their manifests: `packets`, `hops` or `transfers`."""
        total: dict[str, int] = {}
        for manifest in self._manifests:
            for key, count in manifest.tallies[name].items():
                total[key] = total.get(key, 0) + count
        return total

    async def sessions(self, reach: Reach) -> set[str]:
        """Return the sessions that stand in these segments at what is reached: runs, packets, places."""
        found: set[str] = set()
        for named, table, clause in (
            (reach.runs, "packet", "run_id IN ?"),
            (None if reach.packets is None else [one.bytes for one in reach.packets], "ids", "packet_id IN ?"),
        ):
            if named:
                statement = f"SELECT DISTINCT session_id FROM {table} WHERE {clause}"
                found |= {row[0] for row in await self._rows(table, statement, [list(named)])}
        for shard in {shard for shard, _ in reach.places or ()}:
            numbers = [seq for one, seq in reach.places or () if one == shard]
            for table in ("packet", "hop", "other"):
                statement = f"SELECT DISTINCT session_id FROM {table} WHERE shard = ? AND seq IN ? AND session_id <> ''"
                found |= {row[0] for row in await self._rows(table, statement, [shard, numbers])}
        return found

    async def rows_of(self, session_ids: Collection[str]) -> dict[str, list[Record]]:
        """Return all that these sessions have here, by the table that it stood in, each in the order of the log."""
        return {
            "agent_packets": await self._of_sessions("packet", "true", session_ids, None, None),
            "packet_events": await self._of_sessions("hop", "true", session_ids, None, None),
            "packet_lineage": await self._of_sessions("lineage", "true", session_ids, None, None),
            "coordination_events": await self.moves(session_ids),
            "packet_conflicts": await self.conflicts(session_ids=session_ids),
            "packet_ids": await self._ids("session_id IN ?", [list(session_ids) or [""]]),
        }

    async def all_rows(self) -> AsyncIterator[tuple[str, list[Record]]]:
        """Yield every row of these segments with the table that it stood in, at most 10,000 at a time."""
        for name, (table, clause) in _OF_TABLES.items():
            body = "body" if "body" in SCHEMAS[table] else "NULL"
            statement = f"SELECT entry, {body} FROM {table} WHERE {clause} ORDER BY shard, seq"
            async for rows in self._parts((table,), statement):
                yield name, [record_of(*row) for row in rows]
        statement = f"SELECT {', '.join(_IDS)} FROM ids ORDER BY shard, seq"
        async for rows in self._parts(("ids",), statement):
            yield "packet_ids", [dict(zip(_IDS, row, strict=True)) | {"packet_id": UUID(bytes=row[1])} for row in rows]

    async def _parts(
        self, tables: Sequence[str], statement: str, values: Sequence[Any] = ()
    ) -> AsyncIterator[list[tuple[Any, ...]]]:
        prepared = await self._prepared(tables, statement)
        cursor = self._connection.cursor()
        try:
            await asyncio.to_thread(cursor.execute, prepared, list(values))
            while rows := await asyncio.to_thread(cursor.fetchmany, _REPLAYED):
                yield rows
        finally:
            cursor.close()

    async def rows_of_packets(self, packets: Sequence[Record], tables: Collection[str]) -> dict[str, list[Record]]:
        """Return these packets with what is about them in these tables, as `rows_of`."""
        named = [(one["session_id"], one["packet_id"]) for one in packets]
        rows = {"agent_packets": list(packets)}
        if "packet_events" in tables:
            rows["packet_events"] = await self.hops(packets=named)
        if "packet_ids" in tables:
            values = [[one.bytes for _, one in named] or [b""], [session for session, _ in named] or [""]]
            rows["packet_ids"] = await self._ids("packet_id IN ? AND session_id IN ?", values)
        return rows

    async def _ids(self, clause: str, values: Sequence[Any]) -> list[Record]:
        rows = await self._rows("ids", f"SELECT {', '.join(_IDS)} FROM ids WHERE {clause} ORDER BY shard, seq", values)
        return [dict(zip(_IDS, row, strict=True)) | {"packet_id": UUID(bytes=row[1])} for row in rows]

    async def _of_packets(self, table: str, packets: Collection[tuple[str, UUID]]) -> list[Record]:
        if not packets:
            return []
        sessions, ids = {session for session, _ in packets}, [one.bytes for _, one in packets]
        statement = f"SELECT entry FROM {table} WHERE session_id IN ? AND packet_id IN ? ORDER BY shard, seq"
        wanted = set(packets)
        found = [record_of(*row) for row in await self._rows(table, statement, [list(sessions), ids])]
        return [record for record in found if (record["session_id"], record["packet_id"]) in wanted]

    async def _of_sessions(
        self,
        table: str,
        clause: str,
        session_ids: Collection[str] | None,
        after: tuple[int, int] | None,
        limit: int | None,
    ) -> list[Record]:
        values: list[Any] = []
        if session_ids is not None:
            clause += " AND session_id IN ?"
            values.append(list(session_ids) or [""])
        if after is not None:
            clause += " AND (shard, seq) > (?, ?)"
            values += after
        body = "body" if "body" in SCHEMAS[table] else "NULL"
        most = "" if limit is None else f" LIMIT {int(limit)}"
        statement = f"SELECT entry, {body} FROM {table} WHERE {clause} ORDER BY shard, seq{most}"
        return [record_of(*row) for row in await self._rows(table, statement, values)]

    async def _rows(self, table: str, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        import duckdb

        prepared = await self._prepared((table,), statement)
        cursor = self._connection.cursor()
        try:
            return await asyncio.to_thread(lambda: cursor.execute(prepared, list(values)).fetchall())
        except OSError as error:  # another process removed it from the cache
            raise ArchiveUnavailable(self._manifests[0].place, f"{table}.parquet", str(error)) from error
        except duckdb.Error as error:
            problem = f"it cannot be read: {str(error).splitlines()[0]}"
            raise ArchiveDiffers(self._manifests[0].place, f"{table}.parquet", problem) from error
        finally:
            cursor.close()

    async def _prepared(self, tables: Sequence[str], statement: str) -> str:
        """Return a statement over these tables with what they are read from: other readers share the connection."""
        parts = [f"{table} AS NOT MATERIALIZED ({await self._source(table)})" for table in tables]
        return f"WITH {', '.join(parts)} {statement}"

    async def _source(self, table: str) -> str:
        """Fetch the objects of a table when it is first asked for; all of them, or ArchiveUnavailable."""
        async with self._lock:
            if table in self._ready:
                return self._ready[table]
            shards: dict[int, list[str]] = {}
            name = f"{table}.parquet"
            wanted = [(manifest, name) for manifest in self._manifests]
            paths = await self._stack.enter_async_context(self._archive.fetched_all(wanted))
            for manifest, path in zip(self._manifests, paths, strict=True):
                shards.setdefault(manifest.shard, []).append(str(path))
            # Numbers that are read here stand in later statements: an object whose column has another type is an error.
            columns = ", ".join(f"CAST({name} AS {DUCKDB[kind]}) AS {name}" for name, kind in SCHEMAS[table].items())
            parts = [
                f"SELECT {shard} AS shard, {columns} FROM read_parquet([{', '.join(map(quoted, files))}])"
                for shard, files in shards.items()
            ]
            if not parts:
                columns = ", ".join(f"NULL::{DUCKDB[kind]} AS {name}" for name, kind in SCHEMAS[table].items())
                parts = [f"SELECT 0 AS shard, {columns} WHERE false"]
            self._ready[table] = " UNION ALL ".join(parts)
            return self._ready[table]

    async def close(self) -> None:
        """Let go of the files."""
        await self._stack.aclose()


DUCKDB = {
    **{"text": "VARCHAR", "texts": "VARCHAR[]", "uuid": "BLOB", "bytes": "BLOB", "int": "BIGINT", "float": "DOUBLE"},
    **{"flag": "BOOLEAN", "time": "TIMESTAMP"},
}
_REPLAYED = 10_000
_IDS = ("session_id", "packet_id", "packet_hash", "payload_hash", "shard", "seq")
_OF_TABLES = {
    "agent_packets": ("packet", "true"),
    "packet_events": ("hop", "true"),
    "packet_lineage": ("lineage", "true"),
    "coordination_events": ("other", "entry_kind = 'coordination'"),
    "packet_conflicts": ("other", "entry_kind = 'conflict'"),
}
"""Table of the database -> the one of the archive, and which rows of it."""
_SEARCHED = 2_000


@asynccontextmanager
async def open_cold(
    archive: Archive, manifests: Sequence[Manifest], duckdb: "ColdEngine | None" = None
) -> AsyncIterator[ColdLog]:
    """Give a reader of these segments. Expired ones have no rows: leave them out.

    ```python
    async def find_run(archive: Archive, manifests: Sequence[Manifest], run_id: str) -> list[Record]:
        async with open_cold(archive, manifests) as cold:
            return await cold.packets(run_id=run_id)
    ```

    Args:
        archive: where the segments are.
        manifests: theirs.
        duckdb: what reads them, kept by who opens readers again and again; None = one for this reader.

    Raises:
        ExtraMissing: DuckDB is not installed.
    """
    engine = duckdb or ColdEngine()
    cold = ColdLog(archive, manifests, engine.connection)
    try:
        yield cold
    finally:
        await cold.close()
        if duckdb is None:
            engine.close()


class ColdEngine:
    """A DuckDB for readers of archived segments. It takes some 20 ms of CPU to open, more than a page takes to read.

    It ends with `close`, or when nobody refers to it.

    Raises:
        ExtraMissing: DuckDB is not installed.
    """

    def __init__(self) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="apc-cold-"))
            self.connection = stack.enter_context(open_duckdb(Path(folder)))
            self.connection.execute("SET parquet_metadata_cache = true")
            self._finalizer = finalize(self, stack.pop_all().close)

    def close(self) -> None:
        """End it, and remove what it wrote beside memory."""
        self._finalizer()


def quoted(text: str) -> str:
    """Return a text as a constant of SQL."""
    return "'" + text.replace("'", "''") + "'"


def _sent(value: Any) -> Any:
    return value.bytes if isinstance(value, UUID) else value


def _as_utc(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC).replace(tzinfo=None)


def _readable(body: bytes) -> str:
    """Return the text of a packet without the escapes of JSON, in lower case; nothing of an encrypted one."""
    if is_sealed(body):
        return ""
    try:
        return orjson.dumps(orjson.loads(body)).decode().lower()
    except ValueError:
        return body.decode(errors="replace").lower()


# What follows from hops, wherever they were read: as views packet_transitions, packet_state and packet_stale say it.


@cache
def _targets() -> Mapping[str, str]:
    return {str(edge.event): str(edge.target) for edge in load_contract().machine(LIFECYCLE).edges}


def transitions_in(hops: Iterable[Mapping[str, Any]]) -> list[Record]:
    """Return the transitions of these hops, each taken apart; those that move nothing have none."""
    names = ("shard", "seq", "epoch", "batch_no", "recorded_at", "session_id", "packet_id", "recipient", "attempt")
    found: list[Record] = []
    for hop in hops:
        state = hop["from_state"]
        for ordinal, (event, at) in enumerate(zip(hop["events"], hop["occurred_at"], strict=True), 1):
            if hop["to_state"]:
                step = {"ordinal": ordinal, "event": event, "from_state": state, "to_state": _targets().get(event)}
                beside = {"occurred_at": at, "actor": hop["actor"], "metadata": hop["metadata"]}
                found.append({name: hop[name] for name in names} | step | beside)
            state = _targets().get(event)
    return found


def state_in(recipients: Iterable[str], hops: Iterable[Mapping[str, Any]]) -> str:
    """Return the overall state of a packet by all of its hops, in the order of the log."""
    latest = {hop["recipient"]: str(hop["to_state"]) for hop in hops if hop["to_state"]}
    shared = latest.get("", "DRAFT")
    if shared != "ROUTED":
        return shared
    states = [latest.get(recipient, "ROUTED") for recipient in recipients]
    advancing = [state for state in states if state in ADVANCE]
    return min(advancing, key=ADVANCE.index) if advancing else min(states, default="ROUTED")


def stale_in(hops: Iterable[Mapping[str, Any]]) -> dict[tuple[str, UUID], tuple[UUID, UUID | None, datetime]]:
    """Return why packets are stale, by session and packet: what they rest on, the retraction, and since when."""
    found: dict[tuple[str, UUID], tuple[UUID, UUID | None, datetime]] = {}
    for hop in hops:
        if hop["recipient"] == "" and hop["attempt"] == 0 and not hop["to_state"] and hop["events"] == ["stale"]:
            stale = orjson.loads(hop["metadata"])["stale"]
            retraction = stale.get("retraction")
            marked = UUID(stale["because"]), None if retraction is None else UUID(retraction), hop["occurred_at"][0]
            found[hop["session_id"], hop["packet_id"]] = marked
    return found


# Proofs from the archive alone: the path of an entry to a checkpoint that was kept.


async def prove_cold(archive: Archive, key: PublicKey, seq: int, note: str | None = None) -> dict[str, Any]:
    """Return the proof that entry `seq` is in the log of the key's shard, for `apc log check`; no database takes part.

    Args:
        archive: the archive, opened with the log's name.
        key: who signed the checkpoint, under the origin of the shard.
        seq: the entry.
        note: a checkpoint that was kept, within the archived range; None = the one of the newest segment.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: an object is missing, or is not the one that was archived.
        ArchiveError: there is no such entry in the archive, or the checkpoint covers more than it.
        CheckFailed: the checkpoint cannot be trusted, or the segments do not fold to it.
    """
    shard = int(key.name.rpartition("/")[2])
    manifests = [await archive.read_manifest(shard, first) for first in await archive.segments(shard)]
    if not manifests or seq > manifests[-1].last:
        raise ArchiveError(f"the archive has no entry {seq} of shard {shard}")
    held = manifests[-1].checkpoint if note is None else note
    head = parse_note(held).check(key)
    tree = _ColdTree(archive, manifests, head.size)
    path = await tree.path(seq - 1)
    manifest = tree.manifest_of(seq)
    async with open_cold(archive, [manifest]) as cold:
        found = await cold.entries(shard, [seq])
    if not found or root_by_inclusion(seq - 1, head.size, leaf_hash(found[0][1]), path) != head.root:
        raise CheckFailed(f"entry {seq} of {manifest.place} does not fold to the checkpoint of {head.size} entries")
    _, entry, body = found[0]
    proof: dict[str, Any] = {"format": PROOF, "version": VERSIONS[PROOF], "checkpoint": held, "key": str(key)}
    proof |= {"entry": entry.decode(), "path": [step.hex() for step in path]}
    if entry.startswith(b'["packet"') and body is not None:
        proof["body"] = b64encode(body).decode()
    return proof


class _ColdTree:
    """The tree of a size, from the subtrees of manifests and the leaves of single blocks."""

    def __init__(self, archive: Archive, manifests: Sequence[Manifest], size: int) -> None:
        self._archive = archive
        self._manifests = manifests
        self._size = size
        self._subtrees: list[bytes] = []
        for manifest in manifests:
            if manifest.first != len(self._subtrees) * BLOCK + 1:
                missing = len(self._subtrees) * BLOCK + 1
                raise ArchiveUnavailable(place_of(manifest.origin, missing), None, "there is no segment here")
            self._subtrees += manifest.subtrees
        self._last = manifests[-1].last
        if size - self._last >= BLOCK:
            raise ArchiveError(f"the archive goes to entry {self._last}, and the checkpoint to {size}")
        if size > self._last and size != manifests[-1].note.checkpoint.size:
            raise ArchiveError(f"the archive goes to entry {self._last}, and the checkpoint to {size}")
        self._leaves: dict[int, bytes] = {}

    def manifest_of(self, seq: int) -> Manifest:
        """Return the manifest of the segment that holds an entry."""
        return next(one for one in self._manifests if one.first <= seq <= one.last)

    async def path(self, index: int) -> list[bytes]:
        """Return the audit path of a leaf, from 0 (RFC 6962 section 2.1.1)."""
        path: list[bytes] = []
        low, high = 0, self._size
        while high - low > 1:
            middle = low + (1 << (high - low - 1).bit_length() - 1)
            if index < middle:
                path.append(await self._root(middle, high))
                high = middle
            else:
                path.append(await self._root(low, middle))
                low = middle
        return path[::-1]

    async def _root(self, low: int, high: int) -> bytes:
        """Return the root over leaves `low` to `high` - 1: a subtree of the tree."""
        row: list[bytes] = []
        while low < high:
            block, at = divmod(low, BLOCK)
            if low >= self._last:
                beyond = self._manifests[-1].beyond
                row.append(_from_right(beyond))
                break
            width = min(BLOCK - at, high - low)
            row.append(self._subtrees[block] if width == BLOCK else fold_bytes(await self._part(block, at, width)))
            low += width
        return fold(row)

    async def _part(self, block: int, at: int, width: int) -> bytes:
        if block not in self._leaves:
            manifest = self.manifest_of(block * BLOCK + 1)
            self._leaves[block] = await self._archive.read_block(manifest, block - (manifest.first - 1) // BLOCK)
        return self._leaves[block][at * HASH_SIZE : (at + width) * HASH_SIZE]


def _from_right(roots: Sequence[bytes]) -> bytes:
    root = roots[-1]
    for left in reversed(roots[:-1]):
        root = node_hash(left, root)
    return root

"""Archives segments of the log: reads the entries, compares them with the tree, writes them, and reads them back.

Crash-safe: what was written stays, and the next run writes the same bytes again. An object of other bytes stops it.
At the end: an archived segment as tables beside the log.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import asyncpg
import orjson

from apc_bus.crash_points import crash_point
from apc_bus.settings import ArchiveSettings
from apc_contracts.errors import ExtraMissing
from apc_log.archive import (
    BESIDE,
    BLOCK,
    LEAVES,
    MANIFEST,
    OBJECTS,
    OF_ENTRIES,
    ROW_GROUP,
    SCHEMAS,
    SORTED_BY,
    Archive,
    Manifest,
    SegmentObject,
    check_range,
    place_of,
    table_of,
)
from apc_log.cold import count_entries, open_cold, open_duckdb, read_log_entries
from apc_log.cold_verification import check_segment
from apc_log.entries import stored_entry
from apc_log.errors import ArchiveDiffers, ArchiveError
from apc_log.heads import AnyConnection, log_name_of
from apc_log.merkle import HASH_SIZE, fold, fold_bytes, widths_between
from apc_log.offline_verifier import COLUMNS, leaf_hash, parse_note
from apc_persister.errors import TreeBroken
from apc_persister.evidence.rows import prepare_reader, read_leaves, read_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_TILES = """
SELECT index, hashes FROM apc_log.log_tiles WHERE shard = $1 AND level = 0 AND index BETWEEN $2 AND $3 ORDER BY index
"""
_COVERING = """
SELECT note FROM apc_log.log_checkpoints WHERE shard = $1 AND tree_size >= $2 ORDER BY tree_size LIMIT 1
"""
_CHECKPOINTS = """
SELECT tree_size, root_hash, note, recorded_at FROM apc_log.log_checkpoints
WHERE shard = $1 AND tree_size BETWEEN $2 AND $3 ORDER BY tree_size
"""
_NAMES = """
SELECT seq, refers_to, defines FROM apc_log.agent_packets
WHERE shard = $1 AND seq BETWEEN $2 AND $3 AND (refers_to IS NOT NULL OR defines IS NOT NULL)
"""
_IDS = """
SELECT ids.packet_id, ids.session_id, ids.packet_hash, ids.payload_hash, ids.seq
FROM apc_log.agent_packets AS packet JOIN apc_log.packet_ids AS ids
  ON ids.session_id = packet.session_id AND ids.packet_id = packet.packet_id
 AND ids.shard = packet.shard AND ids.seq = packet.seq
WHERE packet.shard = $1 AND packet.seq BETWEEN $2 AND $3 AND ids.shard = $1 AND ids.seq BETWEEN $2 AND $3
"""
_TILE_WIDTH = 256
_ZSTD_LEVEL = 3
_SORT_BATCH = 1_000
GROUP_BYTES = 1 << 26
"""Of the texts and bytes of the rows that are held at once."""
_PLACE = "place"
_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)

Rows = dict[str, list[tuple[Any, ...]]]
"""Table -> its rows, in the order of its columns."""


async def archive_segment(
    connection: AnyConnection, archive: Archive, shard: int, first: int, last: int, *, folder: Path | None = None
) -> Manifest:
    """Write entries `first` to `last` of a shard into the archive, read them back, and return their manifest.

    A segment that is in the archive already is read back and compared with the tree. `folder` is for files while the
    segment is made, by default the system's; they take as much space as the segment.

    Raises:
        TreeBroken: an entry differs from its leaf in the tree.
        ArchiveDiffers: an object was written before with other bytes, or is not read back as it was written.
        ArchiveUnavailable: the archive does not answer.
        ArchiveError: no signed checkpoint covers the segment yet.
        ExtraMissing: DuckDB or pyarrow is not installed.
        ValueError: the range has no whole blocks.
    """
    check_range(first, last)
    _check_extra()
    with tempfile.TemporaryDirectory(prefix="apc-archive-", dir=folder) as work:
        if not await archive.has_manifest(shard, first):
            segment = _Segment(archive, shard, first, last, Path(work))
            await segment.write(connection)
            crash_point("archiver.after_manifest")
        manifest = await archive.read_manifest(shard, first)
        if manifest.last != last:
            raise ArchiveDiffers(manifest.place, MANIFEST, f"the segment ends at {manifest.last} instead of {last}")
        await _read_back(connection, archive.with_cache(Path(work) / "read"), manifest)
    crash_point("archiver.after_reading_back")
    return manifest


def _check_extra() -> None:
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise ExtraMissing(error) from error


async def _read_back(connection: AnyConnection, archive: Archive, manifest: Manifest) -> None:
    """Compare what the store gives with the tiles of the tree. Raises ArchiveDiffers or TreeBroken."""
    checked = await check_segment(archive, manifest)
    for finding in checked.findings:
        raise ArchiveDiffers(manifest.place, finding.name or MANIFEST, finding.message)
    for start in range(manifest.first, manifest.last + 1, BLOCK):
        tiles = await _tiles(connection, manifest.shard, start, start + BLOCK - 1)
        at = (start - manifest.first) * HASH_SIZE
        if tiles != checked.leaves[at : at + len(tiles)]:
            raise ArchiveDiffers(manifest.place, LEAVES, f"the leaves from entry {start} on are not those of the tree")


async def _tiles(connection: AnyConnection, shard: int, first: int, last: int) -> bytes:
    """Return the leaf hashes of entries `first` to `last` by the stored tiles. Raises TreeBroken: one is missing."""
    low, high = (first - 1) // _TILE_WIDTH, (last - 1) // _TILE_WIDTH
    rows = await connection.fetch(_TILES, shard, low, high)
    for index, row in zip(count(low), rows, strict=False):
        if row["index"] != index or len(row["hashes"]) != _TILE_WIDTH * HASH_SIZE:
            raise TreeBroken(shard, f"tile 0/{index} is missing")
    if len(rows) != high - low + 1:
        raise TreeBroken(shard, f"tile 0/{low + len(rows)} is missing")
    return b"".join(row["hashes"] for row in rows)


@dataclass(frozen=True, slots=True)
class _Block:
    """What the database says of 2^16 entries."""

    shard: int
    first: int
    rows: Sequence[asyncpg.Record]
    tiles: bytes
    names: Mapping[int, tuple[Any, Any]]
    ids: Sequence[asyncpg.Record]

    def work_out(self) -> tuple[Rows, bytes]:
        """Return the rows of the tables, and the leaves, which are those of the tiles. Raises TreeBroken."""
        rows: Rows = {table: [] for table in OF_ENTRIES}
        leaves = [b""] * BLOCK
        for seq, text, raw in self.rows:
            try:
                entry = stored_entry(text, raw)
                table, row = _row_of(entry, raw, self.names.get(seq, (None, None)))
            except _UNREADABLE as error:
                raise TreeBroken(self.shard, f"entry {seq} cannot be read") from error
            if leaves[seq - self.first]:
                raise TreeBroken(self.shard, f"entry {seq} stands twice")
            leaves[seq - self.first] = leaf_hash(entry)
            rows[table].append(row)
        joined = b"".join(leaves)
        if joined != self.tiles:
            wanted = (self.tiles[at : at + HASH_SIZE] for at in range(0, len(self.tiles), HASH_SIZE))
            seq = next(seq for seq, leaf, tile in zip(count(self.first), leaves, wanted, strict=False) if leaf != tile)
            raise TreeBroken(self.shard, f"entry {seq} is missing, or differs from its leaf in the tree")
        if len(self.ids) != len(rows["packet"]):
            raise TreeBroken(
                self.shard, f"packet_ids lacks packets of entries {self.first} to {self.first + BLOCK - 1}"
            )
        rows["ids"] = [tuple(row) for row in self.ids]
        return rows, joined


async def _read_block(connection: AnyConnection, shard: int, first: int) -> _Block:
    last = first + BLOCK - 1
    names = await connection.fetch(_NAMES, shard, first, last)
    return _Block(
        shard,
        first,
        await read_rows(connection, shard, first, last),
        await _tiles(connection, shard, first, last),
        {row["seq"]: (row["refers_to"], row["defines"]) for row in names},
        await connection.fetch(_IDS, shard, first, last),
    )


async def _blocks(connection: AnyConnection, shard: int, first: int, last: int) -> AsyncGenerator[_Block, None]:
    """Yield the blocks in order; the next one arrives while one is worked on."""
    arriving: asyncio.Task[_Block] | None = None
    try:
        for start in [*range(first, last + 1, BLOCK), None]:
            block = await arriving if arriving is not None else None
            arriving = None if start is None else asyncio.create_task(_read_block(connection, shard, start))
            if block is not None:
                yield block
    finally:
        if arriving is not None:
            arriving.cancel()
            await asyncio.wait({arriving})


def _places(kind: str, version: int) -> tuple[int | None, ...]:
    """Return where the columns of a table stand in an entry; None where they do not."""
    columns = COLUMNS[kind, version]
    places = {"entry_kind": 0, "seq": 3} | {name: place for place, name in enumerate(columns, 4)}
    return tuple(places.get(name) for name in SCHEMAS[table_of(kind)] if name not in BESIDE)


_PLACES = {(kind, version): (table_of(kind), _places(kind, version)) for kind, version in COLUMNS}


def _row_of(entry: bytes, raw: bytes | None, names: tuple[Any, Any]) -> tuple[str, tuple[Any, ...]]:
    values = orjson.loads(entry)
    table, places = _PLACES[values[0], values[1]]
    said = [None if place is None else values[place] for place in places]
    beside = {"packet": (*names, entry, raw), "other": (entry, raw)}
    return table, (*said, *beside.get(table, (entry,)))


class _Segment:
    """One segment that is being written."""

    def __init__(self, archive: Archive, shard: int, first: int, last: int, folder: Path) -> None:
        self._archive = archive
        self._shard = shard
        self._first = first
        self._last = last
        self._folder = folder
        self._place = place_of(archive.origin(shard), first)

    async def write(self, connection: AnyConnection) -> None:
        """Write the objects, then the manifest."""
        note = await connection.fetchval(_COVERING, self._shard, self._last)
        if note is None:
            raise ArchiveError(f"no checkpoint of shard {self._shard} covers entry {self._last} yet")
        await prepare_reader(connection)
        subtrees = await self._gather(connection)
        beyond = await self._lead_to(connection, parse_note(note).checkpoint.size)
        counts, tallies, log_entries = await asyncio.to_thread(self._sort)
        objects: list[SegmentObject] = []
        for name in OBJECTS:
            crash_point("archiver.before_object")
            objects.append(await self._archive.put(self._place, name, self._folder / name))
            crash_point("archiver.after_object")
        origin = self._archive.origin(self._shard)
        manifest = Manifest(
            *(origin, self._first, self._last, subtrees, note, tuple(objects)),
            *(counts, tallies, log_entries, beyond),
        )
        await self._archive.put(self._place, MANIFEST, manifest.text)

    async def _lead_to(self, connection: AnyConnection, size: int) -> tuple[bytes, ...]:
        """Return the roots of the subtrees between the segment's end and the tree of this size. Raises TreeBroken."""
        leaves = (await read_leaves(connection, self._shard, self._last + 1, size)).hashes if size > self._last else []
        if not all(leaves):
            raise TreeBroken(self._shard, f"entry {self._last + 1 + leaves.index(b'')} is missing")
        roots, at = [], 0
        for width in widths_between(self._last, size):
            roots.append(fold(leaves[at : at + width]))
            at += width
        return tuple(roots)

    async def _gather(self, connection: AnyConnection) -> tuple[bytes, ...]:
        """Write the rows of the tables into files as they come; return the root of each block."""
        subtrees: list[bytes] = []
        writers = {table: _writer(self._folder / f"{table}.rows", table) for table in SCHEMAS}
        blocks = _blocks(connection, self._shard, self._first, self._last)
        try:
            with (self._folder / LEAVES).open("wb") as file:
                async with aclosing(blocks):
                    async for block in blocks:
                        rows, leaves = await asyncio.to_thread(block.work_out)
                        await asyncio.to_thread(_write_rows, writers, rows)
                        file.write(leaves)
                        subtrees.append(await asyncio.to_thread(fold_bytes, leaves))
            notes = await connection.fetch(_CHECKPOINTS, self._shard, self._first, self._last)
            _write_rows(writers, {"checkpoints": [tuple(row) for row in notes]})
        finally:
            for writer in writers.values():
                writer.close()
        return tuple(subtrees)

    def _sort(self) -> tuple[dict[str, int], dict[str, dict[str, int]], tuple[str, ...]]:
        """Write the objects of Parquet in their order; return entries by kind, tallies, and the entries of kind log."""
        for table, columns in SORTED_BY.items():
            with _writer(self._folder / f"{table}.parquet", table, _ZSTD_LEVEL) as writer:
                for group in sorted_groups(self._folder / f"{table}.rows", columns):
                    writer.write_table(group)
        with open_duckdb() as connection:
            for table in SCHEMAS:
                connection.read_parquet(str(self._folder / f"{table}.rows")).create_view(table)
            counts, tallies = count_entries(connection)
            log_entries = read_log_entries(connection)
        for table in SCHEMAS:
            (self._folder / f"{table}.rows").unlink()
        return counts, tallies, log_entries


# Parquet.


def _schema(table: str) -> "pa.Schema":
    import pyarrow as pa

    types: Mapping[str, Any] = {
        "text": pa.string(),
        "texts": pa.list_(pa.string()),
        "uuid": pa.binary(16),
        "bytes": pa.binary(),
        "int": pa.int64(),
        "float": pa.float64(),
        "flag": pa.bool_(),
        "time": pa.timestamp("us"),
    }
    return pa.schema([(name, types[kind]) for name, kind in SCHEMAS[table].items()])


def _writer(path: Path, table: str, level: int = 1) -> "pq.ParquetWriter":
    import pyarrow.parquet as pq

    often = [name for name in SCHEMAS[table] if SCHEMAS[table][name] in ("text", "texts") and name not in BESIDE]
    return pq.ParquetWriter(
        path,
        _schema(table),
        compression="zstd",
        compression_level=level,
        use_dictionary=often,
        data_page_size=1 << 18,
        store_schema=False,
    )


def _write_rows(writers: Mapping[str, "pq.ParquetWriter"], rows: Rows) -> None:
    import pyarrow as pa

    for table, found in rows.items():
        if found:
            schema = _schema(table)
            columns = zip(*found, strict=True)
            arrays = [_array(values, schema.field(name)) for values, name in zip(columns, SCHEMAS[table], strict=True)]
            writers[table].write_table(pa.Table.from_arrays(arrays, schema=schema))


def _array(values: Iterable[Any], column: "pa.Field[Any]") -> "pa.Array[Any]":
    import pyarrow as pa

    if column.type == pa.binary(16):
        values = [_id(value) for value in values]
    elif column.type == pa.timestamp("us"):
        values = [value if value is None or isinstance(value, str) else _text(value) for value in values]
        texts = pa.array([None if value is None else value[:26] for value in values], pa.string())
        return texts.cast(column.type)
    elif column.name == "entry":
        return pa.array(values, pa.binary()).cast(pa.string())
    return pa.array(values, column.type)


def _id(value: Any) -> bytes | None:
    if value is None:
        return None
    raw: bytes = bytes.fromhex(value.replace("-", "")) if isinstance(value, str) else value.bytes
    return raw


def _text(value: datetime) -> str:
    return value.strftime("%Y-%m-%dT%H:%M:%S.%f")


def sorted_groups(
    path: Path, columns: Sequence[str], size: int = ROW_GROUP, most_bytes: int = GROUP_BYTES
) -> Iterator["pa.Table"]:
    """Give the rows of a table in the order of these columns, in groups of at most `size` and `most_bytes`.

    The same rows give the same groups. The columns alone are sorted in memory. The rows are put into a file for each
    group beside theirs, so that no more than a group of them is held at once, however wide they are (DuckDB's sort
    fails there, with files too). One row may be wider than `most_bytes`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = pq.read_table(path, columns=list(columns))
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in columns])
    places = pc.sort_indices(order)
    # Two numbers that grow along the order: their sum changes wherever one of them does.
    by_rows = pc.divide(pa.array(range(len(order)), pa.int64()), size)
    by_bytes = pc.divide(pc.cumulative_sum(_widths(path).take(order)), most_bytes)
    groups = pc.add(by_rows, by_bytes)
    files = {group: path.with_suffix(f".group{group}") for group in pc.unique(groups).to_pylist()}
    _divide(path, places, groups.take(places), files)
    for file in files.values():
        with pa.ipc.open_stream(str(file)) as stream:
            found = stream.read_all()
        found = found.take(pc.sort_indices(found[_PLACE])).drop_columns([_PLACE])
        yield found.combine_chunks()
        file.unlink()


def _widths(path: Path) -> "pa.Array[Any]":
    """Return how many bytes the texts and bytes of each row have."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, pre_buffer=False) as rows:
        wide = [field.name for field in rows.schema_arrow if field.type in (pa.string(), pa.binary())]
        widths = [pa.array([], pa.int64())]
        for batch in rows.iter_batches(_SORT_BATCH, columns=wide):
            total = pa.repeat(pa.scalar(0, pa.int64()), len(batch))
            for column in batch.columns:
                total = pc.add(total, pc.fill_null(pc.binary_length(column), 0))
            widths.append(total)
    return pa.concat_arrays(widths)


def _divide(path: Path, places: "pa.Array[Any]", groups: "pa.Array[Any]", files: Mapping[int, Path]) -> None:
    """Write each row of a table, with its place, into the file of its group."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    with ExitStack() as stack, pq.ParquetFile(path, pre_buffer=False) as rows:
        schema = rows.schema_arrow.append(pa.field(_PLACE, pa.uint64()))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        writers = {
            group: stack.enter_context(pa.ipc.new_stream(str(file), schema, options=options))
            for group, file in files.items()
        }
        done = 0
        for batch in rows.iter_batches(_SORT_BATCH):
            placed = batch.append_column(_PLACE, places.slice(done, len(batch)))
            of_batch = groups.slice(done, len(batch))
            done += len(batch)
            for group in pc.unique(of_batch).to_pylist():
                writers[group].write_batch(placed.filter(pc.equal(of_batch, group)))


# Leaves of released entries, of which the database has the tree above alone.

_SEGMENT_OF = """
SELECT first_seq, manifest ->> 'sha256' AS manifest, apc_guard.segment_root(shard, first_seq, last_seq) AS root
FROM apc_log.segments WHERE shard = $1 AND $2 BETWEEN first_seq AND last_seq
"""


class ArchivedLeaves:
    """Reads leaves of recorded segments from the archive, once they lead to the tree of the database."""

    def __init__(self, connection: AnyConnection, archive: Archive) -> None:
        self._connection = connection
        self._archive = archive
        self._block: tuple[int, int] | None = None
        """Shard and first entry of the block that was read last."""
        self._leaves = b""

    @classmethod
    async def open(cls, connection: AnyConnection, settings: ArchiveSettings) -> Self:
        """Return those of the archive of the settings, of the log that stands in the database. Raises ArchiveError."""
        return cls(connection, Archive.open(settings, await log_name_of(connection) or ""))

    async def leaf(self, shard: int, seq: int) -> bytes:
        """Return the leaf hash of an entry. Raises ArchiveUnavailable, ArchiveDiffers."""
        first = (seq - 1) // BLOCK * BLOCK + 1
        if self._block != (shard, first):
            row = await self._connection.fetchrow(_SEGMENT_OF, shard, seq)
            if row is None or row["manifest"] is None:
                raise ArchiveError(f"entry {seq} of shard {shard} is not archived")
            manifest = await self._archive.read_manifest(shard, row["first_seq"], row["manifest"])
            if manifest.root != row["root"]:
                raise ArchiveDiffers(manifest.place, MANIFEST, "its root is not that of the tree")
            self._leaves = await self._archive.read_block(manifest, (first - manifest.first) // BLOCK)
            self._block = shard, first
        return self._leaves[(seq - first) * HASH_SIZE :][:HASH_SIZE]


# Restoring: the rows of an archived segment in schema apc_restored, in tables like the log's and never part of it.

RESTORED = (
    *("agent_packets", "packet_events", "packet_lineage", "coordination_events", "packet_conflicts", "packet_ids"),
)
"""The tables; registrations, contracts and entries about the log itself are in the log whatever was released."""
_STATE = """
SELECT last_seq, state, manifest ->> 'sha256' AS manifest, apc_guard.segment_root(shard, first_seq, last_seq) AS root
FROM apc_log.segments WHERE shard = $1 AND first_seq = $2
"""
_COLUMNS_OF = """
SELECT attname::text AS name, attgenerated <> '' AS is_generated FROM pg_attribute
WHERE attrelid = to_regclass($1::text) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""
_READERS = """
SELECT string_agg(rolname, ', ') FROM pg_roles WHERE rolname IN ('apc_owner', 'apc_reader', 'apc_writer')
"""
_IS_MEMBER = """
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = 'apc_archiver' AND pg_has_role(current_user, oid, 'MEMBER'))
"""
_SIZE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class
WHERE relnamespace = 'apc_restored'::regnamespace AND relkind = 'r' AND relname ~ $1
"""


# Whatever of a table runs or turns rows away when they are inserted: every archiver may change the tables.
_CHANGED = """
SELECT relname::text FROM pg_class AS one
WHERE relnamespace = 'apc_restored'::regnamespace AND relname = ANY ($1::text[]) AND (
    relkind <> 'p' OR relispartition OR relrowsecurity
    OR EXISTS (SELECT FROM pg_trigger WHERE tgrelid = one.oid)
    OR EXISTS (SELECT FROM pg_rewrite WHERE ev_class = one.oid)
    OR EXISTS (SELECT FROM pg_constraint WHERE conrelid = one.oid AND contype <> 'n')
    OR EXISTS (SELECT FROM pg_attrdef WHERE adrelid = one.oid)
    OR EXISTS (SELECT FROM pg_partitioned_table WHERE partrelid = one.oid AND partexprs IS NOT NULL)
    OR EXISTS (SELECT FROM pg_index WHERE indrelid = one.oid AND (indexprs IS NOT NULL OR indpred IS NOT NULL))
    OR EXISTS (SELECT FROM pg_attribute AS own WHERE attrelid = one.oid AND attnum > 0 AND NOT attisdropped
               AND atttypid IS DISTINCT FROM (
                   SELECT atttypid FROM pg_attribute AS logged
                   WHERE attrelid = format('apc_log.%I', relname)::regclass AND logged.attname = own.attname)))
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restored segment has."""

    shard: int
    first: int
    last: int
    rows: int
    bytes: int
    """In the database, indexes included: what dropping it frees."""


async def restore_segment(connection: AnyConnection, archive: Archive, shard: int, first: int) -> Restored:
    """Write the rows of an archived segment into schema apc_restored, in place of those of an earlier run.

    The user is a member of apc_reader and apc_archiver; who may read the log may read the tables. Nothing is written
    before the objects have the leaves of the tree.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: an object cannot be read, or differs from its manifest, or from the tree.
        ArchiveError: there is no such segment, it is not archived, or has expired; a table there was changed.
        asyncpg.InsufficientPrivilegeError: the user may not.
    """
    await _make_tables(connection)
    row = await connection.fetchrow(_STATE, shard, first)
    problem = "there is none; `apc log segments` lists them" if row is None else _NOT_RESTORED.get(row["state"])
    if row is None or problem is not None:
        raise ArchiveError(f"the segment from entry {first} of shard {shard} cannot be restored: {problem}")
    manifest = await archive.read_manifest(shard, first, row["manifest"])
    if (manifest.last, manifest.root) != (row["last_seq"], row["root"]):
        raise ArchiveDiffers(manifest.place, MANIFEST, "its root is not that of the tree")
    for finding in (await check_segment(archive, manifest)).findings:
        raise ArchiveDiffers(manifest.place, finding.name or MANIFEST, finding.message)
    async with connection.transaction():
        rows = await _load(connection, archive, manifest)
    size = await connection.fetchval(_SIZE, f"_{shard}_{first}$")
    return Restored(shard, first, manifest.last, rows, size)


_NOT_RESTORED = {
    "open": "it is not full, and in the database",
    "sealed": "it is not archived yet, and in the database",
    "expired": "its rows have expired, and may be gone from the archive",
}


async def _make_tables(connection: AnyConnection) -> None:
    """Make the tables that have the segments as partitions. Raises ArchiveError: an older release made them."""
    readers = await connection.fetchval(_READERS)
    async with connection.transaction():
        for table in RESTORED:
            there = await connection.fetch(_COLUMNS_OF, f"apc_restored.{table}")
            columns = await connection.fetch(_COLUMNS_OF, f"apc_log.{table}")
            if there and [one["name"] for one in there] != [one["name"] for one in columns]:
                raise ArchiveError("apc_restored has tables of another release: `apc log restore --drop`")
            await connection.execute(
                f"CREATE TABLE IF NOT EXISTS apc_restored.{table} (LIKE apc_log.{table}) "
                "PARTITION BY RANGE (shard, seq)"
            )
            if there:
                continue
            for indexed in _INDEXED.get(table, ("session_id",)):
                await connection.execute(f"CREATE INDEX ON apc_restored.{table} ({indexed})")
            if readers:
                await connection.execute(f"GRANT SELECT ON apc_restored.{table} TO {readers}")
            await _give_away(connection, table)


_INDEXED = {
    "agent_packets": ("shard, seq", "session_id, packet_id", "run_id"),
    "packet_events": ("shard, seq", "session_id, packet_id"),
    "packet_ids": ("packet_id",),
}


async def _give_away(connection: AnyConnection, table: str) -> None:
    """Make every archiver the owner of a table, so that another one may replace or drop it."""
    if await connection.fetchval(_IS_MEMBER):
        await connection.execute(f"ALTER TABLE apc_restored.{table} OWNER TO apc_archiver")


async def _load(connection: AnyConnection, archive: Archive, manifest: Manifest) -> int:
    """Write the rows, in the transaction of the connection; return how many."""
    await _refuse_changed(connection)
    columns: dict[str, list[str]] = {}
    for table in RESTORED:
        found = await connection.fetch(_COLUMNS_OF, f"apc_log.{table}")
        columns[table] = [one["name"] for one in found if not one["is_generated"]]
        part = f"apc_restored.{table}_{manifest.shard}_{manifest.first}"
        await connection.execute(f"DROP TABLE IF EXISTS {part}")
        await connection.execute(
            f"CREATE TABLE {part} PARTITION OF apc_restored.{table} FOR VALUES "
            f"FROM ({manifest.shard}, {manifest.first}) TO ({manifest.shard}, {manifest.last + 1})"
        )
        await _give_away(connection, f"{table}_{manifest.shard}_{manifest.first}")
        # What follows from other columns is worked out here: nothing of apc_restored depends on functions of the log.
        await connection.execute(
            f"CREATE TEMPORARY TABLE restoring_{table} (LIKE apc_log.{table} INCLUDING GENERATED) ON COMMIT DROP"
        )
    total = 0
    # COPY is binary: asyncpg's own codecs are, and ours are not; both take text.
    for name in ("json", "jsonb"):
        await connection.reset_type_codec(name, schema="pg_catalog")
    async with open_cold(archive, [manifest]) as cold:
        async for table, records in cold.all_rows():
            names = columns[table]
            rows = [tuple(one["body" if name == "body_stored" else name] for name in names) for one in records]
            await connection.copy_records_to_table(f"restoring_{table}", records=rows, columns=names)
            every = ", ".join(one["name"] for one in await connection.fetch(_COLUMNS_OF, f"apc_log.{table}"))
            await connection.execute(
                f"INSERT INTO apc_restored.{table} ({every}) SELECT {every} FROM pg_temp.restoring_{table}"
            )
            await connection.execute(f"TRUNCATE pg_temp.restoring_{table}")
            total += len(rows)
    return total


async def _refuse_changed(connection: AnyConnection) -> None:
    """Raise ArchiveError unless the tables are as we make them; they stay so until the transaction ends.

    A trigger of another archiver would run with the rights of who restores.
    """
    tables = ", ".join(f"apc_restored.{table}" for table in RESTORED)
    await connection.execute(f"LOCK TABLE {tables} IN SHARE ROW EXCLUSIVE MODE")
    changed = await connection.fetchval(_CHANGED, list(RESTORED))
    if changed is not None:
        raise ArchiveError(
            f"apc_restored.{changed} is not as `apc log restore` makes it: find out who changed it, and drop it"
        )


async def drop_restored(connection: AnyConnection) -> int:
    """Drop everything that was restored; return how many bytes that frees."""
    size: int = await connection.fetchval(_SIZE, "")
    async with connection.transaction():
        for table in RESTORED:
            await connection.execute(f"DROP TABLE IF EXISTS apc_restored.{table}")
    return size

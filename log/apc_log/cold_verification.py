"""Verifies the archive of the log from public keys, kept checkpoints and its objects: no database takes part."""

import asyncio
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apc_log.archive import (
    BESIDE,
    BLOCK,
    KEPT,
    LEAVES,
    MANIFEST,
    OBJECTS,
    OF_ENTRIES,
    SCHEMAS,
    Archive,
    Manifest,
    place_of,
    table_of,
)
from apc_log.cold import DUCKDB, count_entries, open_duckdb, quoted, read_log_entries
from apc_log.entries import BYTES_COLUMN
from apc_log.errors import ArchiveDiffers, ArchiveUnavailable
from apc_log.merkle import HASH_SIZE, TILE_WIDTH, Frontier, fold_bytes, widths_between
from apc_log.offline_verifier import (
    COLUMNS,
    CheckFailed,
    Checkpoint,
    PublicKey,
    leaf_hash,
    parse_entry,
    parse_note,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

_BATCH = 2_048
"""Rows that DuckDB hands over at once: as many as it works on at a time."""
_TILES = BLOCK // TILE_WIDTH
_CPUS = len(os.sched_getaffinity(0))
_AHEAD = min(_CPUS + 1, 4)
"""Segments that are verified at once: each takes a thread, and the memory of its leaves."""
_WORTH_A_PROCESS = 1 << 18
"""Entries for which a process is started, which takes about a second of CPU."""
_MOST_NAMED = 20
"""Findings of one kind in one object that are listed one by one."""


# One segment: its objects against each other and its manifest.


@dataclass(frozen=True, slots=True)
class ColdFinding:
    """Something in the archive that does not fit."""

    segment: str
    """Its place in the archive."""
    name: str | None
    """The object; None where it is about the segment, or about one that is not there."""
    seq: int
    """The first entry that it can be about."""
    message: str

    def __str__(self) -> str:
        """Return place and message in one line."""
        return f"{self.segment}{f'/{self.name}' if self.name else ''}: {self.message}"


@dataclass(slots=True)
class CheckedSegment:
    """What a segment's objects say by themselves."""

    manifest: Manifest
    leaves: bytes = b""
    """The leaf hashes that follow from the entries, or those of `leaves` where the rows' objects are gone."""
    tiles: list[bytes] = field(default_factory=list)
    """The roots over each 256 of them; none where they are not as many as the segment has."""
    findings: list[ColdFinding] = field(default_factory=list)
    newest: str | None = None
    """The note of the newest stored checkpoint within it."""

    def add(self, name: str | None, seq: int, message: str) -> None:
        """Take a finding in."""
        self.findings.append(ColdFinding(self.manifest.place, name, seq, message))


def check_files(
    manifest: Manifest, files: Mapping[str, Path], duckdb: "DuckDBPyConnection | None" = None
) -> CheckedSegment:
    """Verify the objects of a segment against each other and its manifest; blocks.

    Every entry gives its leaf, the leaves give the root; bodies and columns are those of the entries. `duckdb` may be
    that of other segments; None = one for this segment.
    """
    checked = CheckedSegment(manifest)
    checked.leaves = files[LEAVES].read_bytes()
    _check_subtrees(checked)
    with _open_verifier() if duckdb is None else duckdb.cursor() as connection:
        rows = {table: _read_table(connection, checked, table, files[f"{table}.parquet"]) for table in SCHEMAS}
        if checked.findings:
            return checked
        _check_entries(connection, checked, rows)
        _check_log_entries(checked, read_log_entries(connection))
        checked.newest = _newest_note(connection)
    return checked


def _open_verifier() -> AbstractContextManager["DuckDBPyConnection"]:
    """Give a DuckDB for the segments that are verified at once, each in the thread that asks."""
    return open_duckdb(
        memory=f"{_AHEAD * 512}MB",
        # One thread for each statement: other segments take the other CPUs. Joins keep bodies out of memory as they are
        # written: the other way round packets were held, not their ids.
        settings="SET threads = 1; SET disabled_optimizers = 'build_side_probe_side'",
    )


def _read_table(connection: "DuckDBPyConnection", checked: CheckedSegment, table: str, path: Path) -> int:
    """Make an object a table, once it is Parquet with the columns of its kind; return how many rows it has."""
    import duckdb

    types = {name: DUCKDB[kind] for name, kind in SCHEMAS[table].items()}
    needed = [name for name in ("seq", "tree_size", "note") if name in types]
    counts: tuple[int, ...] = (0,)
    try:
        source = f"SELECT * FROM read_parquet({quoted(str(path))})"
        found = connection.sql(source)
        if dict(zip(found.columns, map(str, found.types), strict=True)) != types:
            raise ValueError("other columns than those of its kind")
        connection.execute(f"CREATE TEMP VIEW {table} AS {source}")
        counted = ", ".join(["count(*)", *(f"count({name})" for name in needed)])
        (counts,) = connection.execute(f"SELECT {counted} FROM {table}").fetchall()
        if len(set(counts)) > 1:
            raise ValueError("rows without a number or an entry")
        if counts[0] > checked.manifest.last - checked.manifest.first + 1:
            raise ValueError(f"{counts[0]} rows are more than the segment has entries")
    except (duckdb.Error, ValueError) as error:
        _say_unreadable(checked, table, error)
    return int(counts[0])


def _say_unreadable(checked: CheckedSegment, table: str, error: Exception) -> None:
    first_line = str(error).partition("\n")[0]
    checked.add(f"{table}.parquet", checked.manifest.first, f"it cannot be read: {first_line}")


def _newest_note(connection: "DuckDBPyConnection") -> str | None:
    rows = connection.execute("SELECT note FROM checkpoints ORDER BY tree_size DESC LIMIT 1").fetchall()
    return rows[0][0] if rows else None


def _check_log_entries(checked: CheckedSegment, found: Sequence[str] | None) -> None:
    """Compare the log entries of the manifest with the rows, and with their leaves where the rows are gone."""
    manifest = checked.manifest
    if found is not None and found != manifest.log_entries:
        checked.add(MANIFEST, manifest.first, "its log entries are not those of the segment")
    for text in manifest.log_entries:
        try:
            entry = parse_entry(text.encode())
        except CheckFailed as error:
            checked.add(MANIFEST, manifest.first, f"a log entry cannot be read: {error}")
            continue
        at = (entry.seq - manifest.first) * HASH_SIZE
        if entry.kind != "log" or at < 0 or checked.leaves[at : at + HASH_SIZE] != leaf_hash(text.encode()):
            checked.add(MANIFEST, entry.seq, f"log entry {entry.seq} differs from its leaf")


def _check_entries(connection: "DuckDBPyConnection", checked: CheckedSegment, rows: Mapping[str, int]) -> None:
    """Compare the leaves that follow from the entries with `leaves`, columns with entries, bytes with their hashes."""
    manifest, stored = checked.manifest, checked.leaves
    count = manifest.last - manifest.first + 1
    read = _Entries(manifest.first, [b""] * count)
    for table in OF_ENTRIES:
        read.begin(table)
        _read_entries(connection, checked, read, rows[table])
        for seq in read.wrong[:_MOST_NAMED]:
            message = f"the bytes beside entry {seq} are not those that it was made of"
            checked.add(f"{table}.parquet", seq, message)
        if read.empty:
            _say_unreadable(checked, table, ValueError("rows without a number or an entry"))
        elif read.others:
            _check_columns(connection, checked, table, read.others)
        if table == "packet" and (read.others or rows["ids"] != rows["packet"]):
            _check_ids(connection, checked)
    leaves = read.leaves
    if b"".join(leaves) != stored:
        places = [at for at in range(count) if leaves[at] != stored[at * HASH_SIZE : (at + 1) * HASH_SIZE]]
        for at in places[:_MOST_NAMED]:
            what = "differs from its leaf" if leaves[at] else "is missing"
            checked.add(None, manifest.first + at, f"entry {manifest.first + at} {what}")
    within = count - leaves.count(b"")
    if within != sum(rows[table] for table in OF_ENTRIES):
        _check_numbers(connection, checked)
    counts, tallies = count_entries(connection)
    if (counts, tallies) != (manifest.counts, manifest.tallies):
        checked.add(MANIFEST, manifest.first, "its counts or tallies are not those of the entries")


class _Entries:
    """Hashes entries table by table, and takes down what is looked into then.

    Args:
        first: the segment's first entry.
        leaves: where their hashes go.
    """

    def __init__(self, first: int, leaves: list[bytes]) -> None:
        self.first = first
        self.leaves = leaves
        self.begin("")

    def begin(self, table: str) -> None:
        """Begin with the entries of a table."""
        self.table = table
        self.rows = 0
        self.empty = 0
        """Rows without an entry."""
        self.wrong: list[int] = []
        """Entries beside which other bytes stand than they were made of."""
        self.others: list[int] = []
        """Entries whose columns are spelled otherwise than in them."""

    def take(self, reader: "pa.RecordBatchReader") -> None:
        """Hash rows of (place, entry, is other) and, where the table has bytes beside entries, (their hash, they)."""
        for batch in reader:
            self.rows += len(batch)
            places, entries, others, *beside = (column.to_pylist() for column in batch.columns)
            if None in entries:
                self.empty += entries.count(None)
                return
            for at, entry in zip(places, entries, strict=True):
                self.leaves[at] = sha256(b"\x00" + entry).digest()
            if True in others:
                self.others += [self.first + at for at, is_other in zip(places, others, strict=True) if is_other]
            if beside:
                for at, said, body in zip(places, *beside, strict=True):
                    if said != (None if body is None else sha256(body).hexdigest()):
                        self.wrong.append(self.first + at)


def _read_entries(connection: "DuckDBPyConnection", checked: CheckedSegment, read: _Entries, rows: int) -> None:
    """Hash the entries of a table; each is parsed once, for all that is compared with it."""
    manifest, table = checked.manifest, read.table
    within = f"{table}.seq BETWEEN {manifest.first} AND {manifest.last}"
    kinds = {key: columns for key, columns in COLUMNS.items() if table_of(key[0]) == table}
    # Those that the manifest lists first: most segments have no others.
    for key in sorted(kinds, key=lambda key: key[0] not in manifest.counts):
        if read.rows < rows:
            statement = _statement(table, key[0], kinds[key], manifest.first)
            where = f"WHERE {within} AND {_begins(checked, *key)}"
            read.take(connection.sql(f"{statement} {where}").to_arrow_reader(_BATCH))
    if read.rows != rows:  # of no known kind, or not of the segment
        known = " OR ".join(_begins(checked, *key) for key in kinds)
        statement = f"SELECT seq - {manifest.first}, encode(entry), true FROM {table}"
        rest = f"{statement} WHERE {within} AND ({known}) IS NOT TRUE"
        read.take(connection.sql(rest).to_arrow_reader(_BATCH))


def _begins(checked: CheckedSegment, kind: str, version: int) -> str:
    return f"starts_with(entry, '[\"{kind}\",{version},{checked.manifest.shard},')"


def _check_numbers(connection: "DuckDBPyConnection", checked: CheckedSegment) -> None:
    """Report entries that are not of the segment, and those that stand twice."""
    manifest = checked.manifest
    all_rows = " UNION ALL ".join(f"SELECT seq FROM {table}" for table in OF_ENTRIES)
    twice = f"""
    SELECT seq FROM ({all_rows}) WHERE seq BETWEEN {manifest.first} AND {manifest.last}
    GROUP BY seq HAVING count(*) > 1 ORDER BY seq LIMIT {_MOST_NAMED}
    """
    for (seq,) in connection.execute(twice).fetchall():
        checked.add(None, seq, f"entry {seq} stands twice")
    outside = f"SELECT count(*) FROM ({all_rows}) WHERE seq NOT BETWEEN {manifest.first} AND {manifest.last}"
    ((strays,),) = connection.execute(outside).fetchall()
    if strays:
        checked.add(None, manifest.first, f"{strays} entries are not of this segment")


def _check_subtrees(checked: CheckedSegment) -> None:
    """Compare `leaves` with the subtrees of the manifest; the roots of their tiles are kept."""
    manifest, leaves, width = checked.manifest, checked.leaves, TILE_WIDTH * HASH_SIZE
    if len(leaves) != len(manifest.subtrees) * BLOCK * HASH_SIZE:
        checked.add(LEAVES, manifest.first, f"{len(leaves)} bytes are not the leaves of the segment")
        return
    checked.tiles = [fold_bytes(leaves[at : at + width]) for at in range(0, len(leaves), width)]
    for number, root in enumerate(manifest.subtrees):
        tiles = checked.tiles[number * _TILES : (number + 1) * _TILES]
        if fold_bytes(b"".join(tiles)) != root:
            seq = manifest.first + number * BLOCK
            checked.add(LEAVES, seq, f"the leaves of entries {seq} to {seq + BLOCK - 1} do not fold to the subtree")


def _statement(table: str, kind: str, columns: Sequence[str], first: int) -> str:
    """Return the rows of one kind: place, bytes, whether columns are spelled otherwise than in the entry.

    Where a table has bytes beside entries, their hash by the entry and they themselves follow.
    """
    places = {"seq": 3} | {name: place for place, name in enumerate(columns, 4)}
    types = SCHEMAS[table]
    said = [(f"$[{places[name]}]", _spelled(name, types[name])) for name in types if name in places]
    # A text that looks like a list has no first element.
    said += [(f"$[{places[name]}][0]", f"{name}[1]") for name in places if types.get(name) == "texts"]
    others = [f"{name} IS NOT NULL" for name in types if name not in places and name not in BESIDE | {"entry_kind"}]
    if "entry_kind" in types:
        others.append(f"entry_kind IS DISTINCT FROM '{kind}'")
    source = f"SELECT * FROM {table}"
    if table == "packet":
        ids = {"packet_id": "uuid", "session_id": "text", "packet_hash": "hash"}
        said += [(f"$[{places[name]}]", _spelled(f"id_{name}", typed)) for name, typed in ids.items()]
        named = ", ".join(f"{name} AS id_{name}" for name in ids)
        source = f"SELECT * FROM packet LEFT JOIN (SELECT seq, {named} FROM ids) AS id USING (seq)"
    beside, compared, paths = "", "said", [path for path, _ in said]
    if "body" in types:
        beside = ", NULL, body"
        if kind in BYTES_COLUMN:
            paths.append(f"$[{places[BYTES_COLUMN[kind][1]]}]")
            beside, compared = f", coalesce(said[{len(paths)}], ''), body", f"said[:{len(said)}]"
    others.append(f"{compared} IS DISTINCT FROM [{', '.join(spelled for _, spelled in said)}]")
    read = f"SELECT *, json_extract_string(entry, {paths}) AS said FROM ({source}) AS {table}"
    return (
        f"SELECT seq - {first}, encode(entry), coalesce({' OR '.join(others)}, true){beside} FROM ({read}) AS {table}"
    )


def _spelled(column: str, kind: str) -> str:
    """Return the text of a column of a kind as entries have it; another spelling of the same is looked into."""
    match kind:
        case "uuid":
            return f"coalesce(TRY_CAST({column} AS UUID)::VARCHAR, CASE WHEN {column} IS NOT NULL THEN '' END)"
        case "time":
            return f"strftime({column}, '%Y-%m-%dT%H:%M:%S.%fZ')"
        case "float":
            whole = f"{column} = trunc({column}) AND abs({column}) < 1e15"
            return f"CASE WHEN {whole} THEN {column}::BIGINT::VARCHAR ELSE {column}::VARCHAR END"
        case "texts":
            return f"to_json({column})::VARCHAR"
        case "hash":
            return f"lower(hex({column}))"
        case _:
            return f"{column}::VARCHAR"


def _same(column: str, kind: str, said: str) -> str:
    """Return the condition that a column of a kind is what its entry says."""
    match kind:
        case "uuid":
            return f"lower(hex({column})) IS NOT DISTINCT FROM replace({said}, '-', '')"
        case "int" | "flag":
            return f"{column}::VARCHAR IS NOT DISTINCT FROM {said}"
        case "float":
            return f"{column} IS NOT DISTINCT FROM {said}::DOUBLE"
        case "time":
            return f"{column} IS NOT DISTINCT FROM left({said}, 26)::TIMESTAMP"
        case _:
            return f"{column} IS NOT DISTINCT FROM {said}"


def _check_columns(
    connection: "DuckDBPyConnection", checked: CheckedSegment, table: str, numbers: Sequence[int]
) -> None:
    """Compare the columns by which rows are found with these entries: a row with other ones would not be found."""
    before = len(checked.findings)
    for at in range(0, len(numbers), _BATCH):
        some = f"SELECT * FROM {table} WHERE seq IN ({', '.join(map(str, numbers[at : at + _BATCH]))})"
        known = []
        for (kind, version), columns in COLUMNS.items():
            if table_of(kind) == table:
                known.append(_begins(checked, kind, version))
                _check_version(connection, checked, kind, columns, f"({some}) WHERE {known[-1]}")
        unknown = f"SELECT seq FROM ({some}) WHERE NOT ({' OR '.join(known)})"
        _report(connection, checked, table, unknown, "entry {} is of no known kind and version, or of another shard")
        if len(checked.findings) >= before + _MOST_NAMED:
            break


def _check_version(
    connection: "DuckDBPyConnection", checked: CheckedSegment, kind: str, columns: Sequence[str], source: str
) -> None:
    """Compare the columns of entries of one kind and version."""
    table = table_of(kind)
    places = {"seq": 3} | {name: place for place, name in enumerate(columns, 4)}
    paths: list[str] = []
    lists: list[str] = []
    conditions: list[str] = []

    def said(place: int) -> str:
        paths.append(f"'$[{place}]'")
        return f"said[{len(paths)}]"

    for name, typed in SCHEMAS[table].items():
        if name == "entry_kind":
            conditions.append(f"entry_kind = '{kind}'")
        elif name in BESIDE:
            continue
        elif name not in places:
            conditions.append(f"{name} IS NULL")
        elif typed == "texts":
            lists.append(f"json_extract_string(entry, '$[{places[name]}][*]') AS said_{name}")
            conditions.append(f"{name} IS NOT DISTINCT FROM said_{name}")
        else:
            conditions.append(_same(name, typed, said(places[name])))
    beside = ", ".join(name for name in ("entry", "body") if name in SCHEMAS[table])
    read = ", ".join([f"json_extract_string(entry, [{', '.join(paths)}]) AS said", *lists])
    # Each entry is parsed once: without MATERIALIZED it would be for every column.
    statement = f"""
    WITH parsed AS MATERIALIZED (SELECT * EXCLUDE ({beside}), {read} FROM {source})
    SELECT seq FROM parsed WHERE NOT ({" AND ".join(conditions)})
    """
    _report(connection, checked, table, statement, "the columns of entry {} are not what it says")


def _report(
    connection: "DuckDBPyConnection", checked: CheckedSegment, table: str, statement: str, message: str
) -> None:
    for (seq,) in connection.execute(f"{statement} ORDER BY seq LIMIT {_MOST_NAMED}").fetchall():
        checked.add(f"{table}.parquet", seq or 0, message.format(seq))


def _check_ids(connection: "DuckDBPyConnection", checked: CheckedSegment) -> None:
    place = 4 + COLUMNS["packet", 1].index("packet_hash")
    statement = f"""
    SELECT coalesce(packet.seq, ids.seq) AS seq FROM packet FULL JOIN ids USING (seq)
    WHERE packet.packet_id IS DISTINCT FROM ids.packet_id OR packet.session_id IS DISTINCT FROM ids.session_id
       OR lower(hex(ids.packet_hash)) IS DISTINCT FROM json_extract_string(packet.entry, '$[{place}]')
    UNION SELECT seq FROM ids GROUP BY seq HAVING count(*) > 1
    """
    _report(connection, checked, "ids", statement, "the id of entry {} is not that of its packet")


def _check(manifest: Manifest, files: Mapping[str, Path], duckdb: "DuckDBPyConnection | None" = None) -> CheckedSegment:
    """As `check_files`; what DuckDB cannot read to its end is a finding."""
    from duckdb import Error

    try:
        return check_files(manifest, files, duckdb or _of_this_process)
    except Error as error:
        return _unread(manifest, files, f"its objects cannot be read: {str(error).partition(chr(10))[0]}")


def _unread(manifest: Manifest, files: Mapping[str, Path], problem: str) -> CheckedSegment:
    checked = CheckedSegment(manifest, files[LEAVES].read_bytes())
    _check_subtrees(checked)
    checked.add(None, manifest.first, problem)
    return checked


async def check_segment(archive: Archive, manifest: Manifest, helpers: "_Helpers | None" = None) -> CheckedSegment:
    """Verify the objects of a segment against each other and its manifest.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: an object is missing or has other bytes.
    """
    async with archive.fetched(manifest, *OBJECTS) as files:
        if helpers is None:
            return await asyncio.to_thread(_check, manifest, files)
        return await helpers.check(manifest, files)


# Who verifies the segments of a long archive: processes; of a short one, which ends before they have started, threads.

_of_this_process: "DuckDBPyConnection | None" = None
"""What a process that verifies keeps from segment to segment."""
_until_the_end = ExitStack()


class _Helpers:
    """Verifies segments, several at once."""

    def __init__(self, duckdb: "DuckDBPyConnection", processes: ProcessPoolExecutor | None) -> None:
        self._duckdb = duckdb
        self._processes = processes
        self.is_broken = False

    async def check(self, manifest: Manifest, files: Mapping[str, Path]) -> CheckedSegment:
        """Return what is found in a segment."""
        if self._processes is None:
            return await asyncio.to_thread(_check, manifest, files, self._duckdb)
        try:
            try:
                working = asyncio.get_running_loop().run_in_executor(self._processes, _check, manifest, dict(files))
            except OSError as error:  # one is killed just now
                raise BrokenProcessPool from error
            return await working
        except BrokenProcessPool:  # the memory may have been too little for it, or for one beside it
            self.is_broken = True
            problem = "it was not verified: one of the processes that verify was killed"
            return await asyncio.to_thread(_unread, manifest, files, problem)


@contextmanager
def _start_helpers(entries: int) -> Iterator[_Helpers]:
    """Give who verifies so many entries; processes end with the context and this process. Raises ExtraMissing."""
    count = min(_AHEAD, _CPUS, entries // _WORTH_A_PROCESS)
    with _open_verifier() as duckdb:
        if count < 2:
            yield _Helpers(duckdb, None)
            return
        # Not forked: this process has threads and a loop.
        others, pool = set(active_children()), ProcessPoolExecutor(count, get_context("spawn"), initializer=_begin)
        helpers = _Helpers(duckdb, pool)
        try:
            yield helpers
            pool.shutdown(wait=not helpers.is_broken)  # one that starts while another is killed ends by itself never
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.kill()


def _begin() -> None:
    global _of_this_process
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started us stops us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _of_this_process = _until_the_end.enter_context(_open_verifier())


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# The archive of a shard: its segments follow from the tree, and the tree from checkpoints that were kept.


@dataclass(slots=True)
class ColdReport:
    """What `verify_cold` found in the archive of a shard."""

    origin: str
    segments: int = 0
    expired: int = 0
    """Segments of which leaves and checkpoints are left alone, as entries of the log say."""
    entries: int = 0
    """Entries that were recomputed."""
    size: int = 0
    """Entries that the segments hold from the first on, without a gap."""
    root: bytes = b""
    """The root over them."""
    compared: int = 0
    """Kept checkpoints that were compared."""
    proven: int = 0
    """Size of the largest kept checkpoint that fits: up to it nothing was changed, not even with the log's key."""
    beyond: int = 0
    """Kept checkpoints of more entries than the segments hold: the rest stands in the database, or is missing."""
    findings: list[ColdFinding] = field(default_factory=list)


async def verify_cold(
    archive: Archive,
    key: PublicKey,
    *,
    older: Iterable[PublicKey] = (),
    checkpoints: Iterable[Checkpoint] = (),
    expired: Collection[int] = (),
    progress: Callable[[int], None] = lambda entries: None,
) -> ColdReport:
    """Verify the archive of the shard of a key from its objects alone.

    The segments tile 1..n, each entry gives its leaf, the leaves fold to every kept checkpoint and to the signed one of
    each manifest, objects have the digests that manifests name. What expired must be told by an entry of the log.

    Args:
        archive: the archive, opened with the log's name.
        key: who signs checkpoints, under the origin of the shard.
        older: keys that the shard's log had before.
        checkpoints: those that were kept elsewhere, their signatures checked already.
        expired: first entries of segments whose expiry stands in entries that are not archived yet.
        progress: told the number of entries of each segment, behind it.

    Raises:
        ArchiveUnavailable: the archive does not answer.
        ExtraMissing: DuckDB is not installed.
    """
    verification = _Verification((key, *older), checkpoints, expired)
    shard = int(key.name.rpartition("/")[2])
    coming: deque[asyncio.Task[_Read]] = deque()
    segments = await archive.segments(shard)
    with _start_helpers(segments[-1] - segments[0] if segments else 0) as helpers:
        try:
            for first in [*segments, None]:
                if first is not None:
                    coming.append(asyncio.create_task(_read_segment(archive, shard, first, helpers)))
                while coming and (len(coming) == _AHEAD or first is None):
                    progress(await verification.take(await coming.popleft()))
        finally:
            for task in coming:
                task.cancel()
            await asyncio.gather(*coming, return_exceptions=True)
    return verification.finish()


@dataclass(slots=True)
class _Read:
    """What was read of a segment, without those before it."""

    first: int
    checked: CheckedSegment | None = None
    """None without a manifest."""
    is_whole: bool = False
    """Every object was verified."""
    findings: list[ColdFinding] = field(default_factory=list)
    gone: list[ColdFinding] = field(default_factory=list)
    """Objects that are missing, which an expiry may explain."""


async def _read_segment(archive: Archive, shard: int, first: int, helpers: _Helpers) -> _Read:
    read = _Read(first)
    try:
        manifest = await archive.read_manifest(shard, first)
        read.checked = CheckedSegment(manifest)
        read.checked = await check_segment(archive, manifest, helpers)
        read.is_whole = True
    except (ArchiveUnavailable, ArchiveDiffers) as error:
        finding = ColdFinding(error.segment, error.name, first, error.problem)
        is_gone = isinstance(error, ArchiveUnavailable) and error.name not in KEPT and error.name != MANIFEST
        (read.gone if is_gone else read.findings).append(finding)
        if read.checked is not None:
            await _read_leaves(archive, read, read.checked)
    return read


async def _read_leaves(archive: Archive, read: _Read, checked: CheckedSegment) -> None:
    """Read what is left of a segment of which an object is missing or changed."""
    try:
        async with archive.fetched(checked.manifest, LEAVES) as files:
            checked.leaves = await asyncio.to_thread(files[LEAVES].read_bytes)
    except (ArchiveUnavailable, ArchiveDiffers) as error:
        if LEAVES not in {one.name for one in read.findings}:
            read.findings.append(ColdFinding(error.segment, error.name, read.first, error.problem))
        return
    await asyncio.to_thread(_check_subtrees, checked)
    _check_log_entries(checked, None)


class _Verification:
    """Segments of a shard, one after the other."""

    def __init__(self, keys: Sequence[PublicKey], checkpoints: Iterable[Checkpoint], expired: Collection[int]) -> None:
        self._keys = keys
        self._kept: dict[int, set[bytes]] = {}
        for checkpoint in checkpoints:
            if checkpoint.origin in {one.name for one in keys}:
                self._kept.setdefault(checkpoint.size, set()).add(checkpoint.root)
        self._frontier: Frontier | None = Frontier()
        """None from a gap on: nothing can be folded behind it."""
        self._next = 1
        self._good = 0
        self._expired = set(expired)
        self._gone: dict[int, list[ColdFinding]] = {}
        self._manifests: dict[int, Manifest] = {}
        self.report = ColdReport(keys[0].name)

    async def take(self, read: _Read) -> int:
        """Take the next segment in; return how many entries it has."""
        self._check_turn(read.first)
        self.report.findings += read.findings
        if read.gone:
            self._gone[read.first] = read.gone
        checked = read.checked
        if checked is None:
            self._frontier = None
            return 0
        manifest = checked.manifest
        self._manifests[read.first] = manifest
        self._next = manifest.last + 1
        self.report.segments += 1
        self.report.findings += checked.findings
        await asyncio.to_thread(self._fold, checked)
        self._read_log(checked)
        entries = manifest.last - manifest.first + 1
        self.report.entries += entries if read.is_whole else 0
        return entries

    def _check_turn(self, first: int) -> None:
        if first > self._next:
            place = place_of(self.report.origin, self._next)
            self._say(place, None, self._next, f"there is no segment of entries {self._next} to {first - 1}")
            self._frontier = None
        elif first < self._next:
            place = place_of(self.report.origin, first)
            self._say(place, None, first, f"the segment before it goes to entry {self._next - 1}")
            self._frontier = None

    def _fold(self, checked: CheckedSegment) -> None:
        """Grow the tree by a segment, and compare it with every checkpoint on the way."""
        manifest, frontier = checked.manifest, self._frontier
        if frontier is None:
            return
        newest = self._signed(manifest, checked.newest, "checkpoints.parquet")
        sizes = {size for size in self._kept if manifest.first <= size <= manifest.last}
        if newest is not None and manifest.first <= newest.size <= manifest.last:
            sizes.add(newest.size)
        for size in sorted(sizes) if checked.tiles else ():
            _grow(frontier, checked, size)
            self._compare(manifest, size, frontier.root, newest)
        _grow(frontier, checked, manifest.last)
        self.report.size, self.report.root = frontier.size, frontier.root
        covering = self._signed(manifest, manifest.checkpoint, MANIFEST)
        if covering is not None:
            ahead = Frontier(frontier.size, list(frontier.stack))
            for width, root in zip(widths_between(manifest.last, covering.size), manifest.beyond, strict=True):
                ahead.append_subtree(root, width)
            self._compare(manifest, covering.size, ahead.root, covering)

    def _signed(self, manifest: Manifest, note: str | None, name: str) -> Checkpoint | None:
        """Return what a note says, once its signature holds."""
        if note is None:
            return None
        problem: CheckFailed | None = None
        for key in self._keys:
            try:
                return parse_note(note).check(key)
            except CheckFailed as error:
                problem = problem or error
        self._say(manifest.place, name, manifest.first, f"its checkpoint cannot be trusted: {problem}")
        return None

    def _compare(self, manifest: Manifest, size: int, root: bytes, signed: Checkpoint | None) -> None:
        kept = self._kept.get(size)
        is_kept = kept is None or kept == {root}
        is_signed = signed is None or signed.size != size or signed.root == root
        if is_kept and is_signed:
            self._good = size
            if kept is not None:
                self.report.proven = size
        else:
            which = "a kept checkpoint" if not is_kept else "the signed checkpoint"
            message = (
                f"{which} of {size} entries is not that of the leaves: an entry from {self._good + 1} on was changed"
            )
            self._say(manifest.place, LEAVES, self._good + 1, message)
        self.report.compared += kept is not None and size <= manifest.last

    def _read_log(self, checked: CheckedSegment) -> None:
        """Compare what the log says of segments with the manifests, and take note of what expired."""
        for text in checked.manifest.log_entries:
            with suppress(CheckFailed):  # said by `_check_log_entries`
                entry = parse_entry(text.encode())
                kind, detail = entry.values.get("kind"), entry.values.get("detail")
                if entry.kind != "log" or not isinstance(detail, dict) or type(detail.get("first_seq")) is not int:
                    continue  # the guard writes none such: it differs from its leaf, which is said too
                if kind == "expire":
                    self._expired.add(detail["first_seq"])
                elif kind == "segment":
                    self._compare_recorded(detail)

    def _compare_recorded(self, detail: Mapping[str, Any]) -> None:
        first = detail["first_seq"]
        manifest, place = self._manifests.get(first), place_of(self.report.origin, first)
        if manifest is None:
            self._say(place, None, first, "an entry of the log tells of this segment, and the archive lacks it")
        elif (detail.get("last_seq"), detail.get("root")) != (manifest.last, manifest.root.hex()) or (
            detail.get("manifest", manifest.sha256) != manifest.sha256
        ):
            self._say(place, MANIFEST, first, "it is not the one that the log's segment entry names")

    def _say(self, segment: str, name: str | None, seq: int, message: str) -> None:
        self.report.findings.append(ColdFinding(segment, name, seq, message))

    def finish(self) -> ColdReport:
        """Return the report; what is missing without an entry of its expiry is a finding."""
        for first, missing in self._gone.items():
            if first in self._expired:
                self.report.expired += 1
            else:
                self.report.findings += missing
        self.report.beyond = sum(size > self.report.size for size in self._kept)
        self.report.findings.sort(key=lambda finding: finding.seq)
        return self.report


def _grow(frontier: Frontier, checked: CheckedSegment, size: int) -> None:
    """Extend the tree up to a size within the segment: by whole blocks where it can, else by tiles and leaves."""
    while frontier.size < size:
        at = frontier.size - checked.manifest.first + 1
        for width in (BLOCK, TILE_WIDTH, 1):
            if at % width == 0 and frontier.size + width <= size:
                break
        if width == BLOCK:
            root = checked.manifest.subtrees[at // BLOCK]
        elif width == TILE_WIDTH:
            root = checked.tiles[at // TILE_WIDTH]
        else:
            root = checked.leaves[at * HASH_SIZE : (at + 1) * HASH_SIZE]
        frontier.append_subtree(root, width)

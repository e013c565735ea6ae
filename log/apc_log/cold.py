"""Reads and verifies the archive of the log with DuckDB: no database takes part."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from apc_log.archive import (
    BESIDE,
    BLOCK,
    LEAVES,
    OBJECTS,
    OF_ENTRIES,
    SCHEMAS,
    Archive,
    Manifest,
    table_of,
)
from apc_log.entries import BYTES_COLUMN
from apc_log.errors import ArchiveError
from apc_log.merkle import HASH_SIZE, fold_bytes
from apc_log.offline_verifier import COLUMNS

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY = "1GB"
"""What DuckDB takes at most; sorts go to files beyond it."""
_MOST_NAMED = 20
"""Findings of one kind in one object that are listed one by one."""


@contextmanager
def open_duckdb(folder: Path | None = None, memory: str = MEMORY) -> Iterator["DuckDBPyConnection"]:
    """Give a DuckDB in memory that loads no extensions; what it cannot hold it writes below `folder`, if given.

    Raises:
        ArchiveError: DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise ArchiveError("reading the archive needs DuckDB and pyarrow: pip install 'apc-bus[archive]'") from error
    with duckdb.connect() as connection:
        connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
        connection.execute(f"SET memory_limit = '{memory}'; SET enable_progress_bar = false; SET TimeZone = 'UTC'")
        connection.execute("SET temp_directory = ?", [str(folder) if folder else ""])
        yield connection


# Verification: what a segment holds follows from the tree, and the tree from checkpoints that were kept.


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
    findings: list[ColdFinding] = field(default_factory=list)
    checkpoints: list[tuple[int, str]] = field(default_factory=list)
    """Size and note of each stored checkpoint."""
    log_entries: list[tuple[int, str, Any]] = field(default_factory=list)
    """seq, kind and detail of what was done to the log: segments, expiries."""

    def add(self, name: str | None, seq: int, message: str) -> None:
        """Take a finding in."""
        self.findings.append(ColdFinding(self.manifest.place, name, seq, message))


def check_files(manifest: Manifest, files: Mapping[str, Path]) -> CheckedSegment:
    """Verify the objects of a segment against each other and its manifest; blocks.

    Every entry gives its leaf, the leaves give the root; bodies and columns are those of the entries.
    """
    checked = CheckedSegment(manifest)
    stored = files[LEAVES].read_bytes()
    with open_duckdb() as connection:
        for table in SCHEMAS:
            connection.read_parquet(str(files[f"{table}.parquet"])).create_view(table)
        _check_leaves(connection, checked, stored)
        for table in OF_ENTRIES:
            _check_columns(connection, checked, table)
        _check_bodies(connection, checked)
        _check_ids(connection, checked)
        _check_counts(connection, checked)
        rows = connection.execute("SELECT tree_size, note FROM checkpoints ORDER BY tree_size").fetchall()
        checked.checkpoints = [(size, note) for size, note in rows]
        rows = connection.execute("SELECT seq, entry FROM other WHERE entry_kind = 'log' ORDER BY seq").fetchall()
        place = 4 + COLUMNS["log", 1].index("kind")
        for seq, entry in rows:
            values = orjson.loads(entry)
            checked.log_entries.append((seq, values[place], values[place + 2]))
    return checked


def _check_leaves(connection: "DuckDBPyConnection", checked: CheckedSegment, stored: bytes) -> None:
    """Compare the leaves that follow from the entries with `leaves`, and these with the subtrees of the manifest."""
    manifest = checked.manifest
    first, count = manifest.first, manifest.last - manifest.first + 1
    union = " UNION ALL ".join(f"SELECT seq, entry FROM {table}" for table in OF_ENTRIES)
    found = connection.sql(
        f"SELECT seq, unhex(sha256('\\x00'::BLOB || encode(entry))) AS leaf FROM ({union}) ORDER BY seq"
    ).to_arrow_table()
    seqs, leaves = found["seq"].to_pylist(), b"".join(found["leaf"].to_pylist())
    if seqs != list(range(first, manifest.last + 1)):
        counted = Counter(seqs)
        wanted = range(first, manifest.last + 1)
        for seq in [seq for seq in wanted if counted[seq] != 1][:_MOST_NAMED]:
            checked.add(None, seq, f"entry {seq} is {'missing' if not counted[seq] else 'there twice'}")
        for seq in sorted(counted.keys() - set(wanted))[:_MOST_NAMED]:
            checked.add(None, seq, f"entry {seq} is not of this segment")
        leaves = stored
    elif leaves != stored:
        at = [n for n in range(count) if leaves[n * HASH_SIZE :][:HASH_SIZE] != stored[n * HASH_SIZE :][:HASH_SIZE]]
        for place in at[:_MOST_NAMED]:
            checked.add(LEAVES, first + place, f"entry {first + place} differs from its leaf")
    checked.leaves = stored
    _check_subtrees(checked, stored)


def _check_subtrees(checked: CheckedSegment, leaves: bytes) -> None:
    manifest, width = checked.manifest, BLOCK * HASH_SIZE
    if len(leaves) != len(manifest.subtrees) * width:
        checked.add(LEAVES, manifest.first, f"{len(leaves)} bytes are not the leaves of the segment")
        return
    for number, root in enumerate(manifest.subtrees):
        if fold_bytes(leaves[number * width : (number + 1) * width]) != root:
            seq = manifest.first + number * BLOCK
            checked.add(LEAVES, seq, f"the leaves of entries {seq} to {seq + BLOCK - 1} do not fold to the subtree")


def _read(place: int) -> str:
    return f"'$[{place}]'"


def _same(column: str, kind: str, place: int, at: int) -> str:
    """Return the condition that a column is what stands in the entry at a place; `at` is its number in `said`."""
    said = f"said[{at}]"
    match kind:
        case "uuid":
            return f"lower(hex({column})) IS NOT DISTINCT FROM replace({said}, '-', '')"
        case "int" | "flag":
            return f"{column}::VARCHAR IS NOT DISTINCT FROM {said}"
        case "float":
            return f"{column} IS NOT DISTINCT FROM {said}::DOUBLE"
        case "time":
            return f"{column} IS NOT DISTINCT FROM left({said}, 26)::TIMESTAMP"
        case "texts":
            return f"{column} IS NOT DISTINCT FROM json_extract_string(entry, '$[{place}][*]')"
        case _:
            return f"{column} IS NOT DISTINCT FROM {said}"


def _check_columns(connection: "DuckDBPyConnection", checked: CheckedSegment, table: str) -> None:
    """Compare the columns by which rows are found with the entries: a row with other ones would not be found."""
    known = []
    for (kind, version), columns in COLUMNS.items():
        if table_of(kind) != table:
            continue
        begins = f"starts_with(entry, '[\"{kind}\",{version},{checked.manifest.shard},')"
        known.append(begins)
        places = {"seq": 3} | {name: place for place, name in enumerate(columns, 4)}
        paths, conditions = [], []
        for name, typed in SCHEMAS[table].items():
            if name == "entry_kind":
                conditions.append(f"entry_kind = '{kind}'")
            elif name in BESIDE:
                continue
            elif name in places:
                paths.append(_read(places[name]))
                conditions.append(_same(name, typed, places[name], len(paths)))
            else:
                conditions.append(f"{name} IS NULL")
        said = f"json_extract_string(entry, [{', '.join(paths)}]) AS said"
        statement = (
            f"SELECT seq FROM (SELECT *, {said} FROM {table} WHERE {begins}) WHERE NOT ({' AND '.join(conditions)})"
        )
        _report(connection, checked, table, statement, "the columns of entry {} are not what it says")
    unknown = f"SELECT seq FROM {table} WHERE NOT ({' OR '.join(known)})"
    _report(connection, checked, table, unknown, "entry {} is of no known kind and version, or of another shard")


def _report(
    connection: "DuckDBPyConnection", checked: CheckedSegment, table: str, statement: str, message: str
) -> None:
    for (seq,) in connection.execute(f"{statement} ORDER BY seq LIMIT {_MOST_NAMED}").fetchall():
        checked.add(f"{table}.parquet", seq or 0, message.format(seq))


def _check_bodies(connection: "DuckDBPyConnection", checked: CheckedSegment) -> None:
    for (kind, version), columns in COLUMNS.items():
        table = table_of(kind)
        begins = f"starts_with(entry, '[\"{kind}\",{version},')"
        if kind in BYTES_COLUMN:
            place = 4 + columns.index(BYTES_COLUMN[kind][1])
            wrong = f"sha256(body) IS DISTINCT FROM json_extract_string(entry, '$[{place}]')"
        elif "body" in SCHEMAS[table]:
            wrong = "body IS NOT NULL"
        else:
            continue
        statement = f"SELECT seq FROM {table} WHERE {begins} AND {wrong}"
        _report(connection, checked, table, statement, "the bytes beside entry {} are not those that it was made of")


def _check_ids(connection: "DuckDBPyConnection", checked: CheckedSegment) -> None:
    place = 4 + COLUMNS["packet", 1].index("packet_hash")
    statement = f"""
    SELECT coalesce(packet.seq, ids.seq) AS seq FROM packet FULL JOIN ids USING (seq)
    WHERE packet.packet_id IS DISTINCT FROM ids.packet_id OR packet.session_id IS DISTINCT FROM ids.session_id
       OR lower(hex(ids.packet_hash)) IS DISTINCT FROM json_extract_string(packet.entry, '$[{place}]')
    """
    _report(connection, checked, "ids", statement, "the id of entry {} is not that of its packet")


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
    counts = {kind: count for kind, count in connection.execute(_COUNTS).fetchall() if count}
    return counts, {name: dict(connection.execute(statement).fetchall()) for name, statement in TALLIES.items()}


def _check_counts(connection: "DuckDBPyConnection", checked: CheckedSegment) -> None:
    counts, tallies = count_entries(connection)
    if (counts, tallies) != (checked.manifest.counts, checked.manifest.tallies):
        checked.add("manifest.json", checked.manifest.first, "its counts or tallies are not those of the entries")


async def check_segment(archive: Archive, manifest: Manifest) -> CheckedSegment:
    """Verify the objects of a segment against each other and its manifest.

    Raises:
        ArchiveUnavailable, ArchiveDiffers: an object is missing or has other bytes.
    """
    async with archive.fetched(manifest, *OBJECTS) as files:
        return await asyncio.to_thread(check_files, manifest, files)

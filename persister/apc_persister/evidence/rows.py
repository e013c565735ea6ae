"""Reads rows back as entries: PostgreSQL renders each row as a JSON array, `stored_entry` makes it canonical."""

import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import asyncpg

from apc_log.entries import BYTES_COLUMN, HASHES, KINDS, NULLABLE_JSON, WITHOUT_COLUMN, stored_entry
from apc_log.heads import AnyConnection
from apc_log.offline_verifier import COLUMNS, leaf_hash
from apc_persister.verification.findings import LogFinding

NO_LEAF = b""
"""Stands where no row gives a leaf."""
_PLACED = re.compile(r'\["\w+", \d+, \d+, \d+, (\d{1,19}), (\d{1,19}), ')
"""Epoch and batch in the text of a row."""


def _select(kind: str) -> str:
    versions = sorted(version for name, version in COLUMNS if name == kind)
    whens = " ".join(f"WHEN {version} THEN {_array(kind, version)}" for version in versions)
    raw = BYTES_COLUMN[kind][0] if kind in BYTES_COLUMN else "NULL::bytea"
    return f"SELECT seq, CASE entry_version {whens} END::text AS entry, {raw} AS raw FROM apc_log.{KINDS[kind]}"


def _array(kind: str, version: int) -> str:
    return f"json_build_array('{kind}', entry_version, shard, seq, {', '.join(map(_value, COLUMNS[kind, version]))})"


def _value(column: str) -> str:
    if column == WITHOUT_COLUMN:
        return "NULL"
    if column in NULLABLE_JSON:
        # JSON's null would stand in the array as SQL's does. The writer stores none: a string fits no leaf.
        return f"CASE jsonb_typeof({column}) WHEN 'null' THEN to_jsonb('null'::text) ELSE {column} END"
    return f"encode({column}, 'hex')" if column in HASHES else column


_SELECTS: Mapping[str, str] = {kind: _select(kind) for kind in KINDS}


@dataclass(slots=True)
class Leaves:
    """The leaf hashes of entries `first` to `last`, made of their rows."""

    first: int
    hashes: list[bytes]
    """b'' where there is no row, or one that no release can have written."""
    doubled: list[int] = field(default_factory=list)
    """Numbers that two rows have."""
    batches: dict[int, int] = field(default_factory=dict)
    """epoch -> the last batch of it that a row names."""


async def prepare_reader(connection: AnyConnection) -> None:
    """Set a connection up for `read_leaves`: times come in UTC, floats exact."""
    await connection.execute("SET TIME ZONE 'UTC'; SET extra_float_digits = 1")


async def read_leaves(connection: AnyConnection, shard: int, first: int, last: int) -> Leaves:
    """Return the leaves of entries `first` to `last` of a shard; some 10^4 at once is a good measure."""
    return leaves_of(first, last, await read_rows(connection, shard, first, last))


async def read_rows(
    connection: AnyConnection, shard: int, first: int, last: int, kinds: Iterable[str] = KINDS
) -> list[asyncpg.Record]:
    """Return the rows of entries `first` to `last` of these kinds, in no order, for `leaves_of`."""
    rows: list[asyncpg.Record] = []
    for kind in kinds:
        query = f"{_SELECTS[kind]} WHERE shard = $1 AND seq BETWEEN $2 AND $3"
        rows += await connection.fetch(query, shard, first, last)
    return rows


def leaves_of(first: int, last: int, rows: Iterable[asyncpg.Record]) -> Leaves:
    """Return the leaves of the places `first` to `last`; NO_LEAF where no row is."""
    leaves = Leaves(first, [NO_LEAF] * (last - first + 1))
    hashes, batches = leaves.hashes, leaves.batches
    seen: set[int] = set()
    for seq, text, raw in rows:
        leaf = _leaf(text, raw)
        if seq in seen:
            leaves.doubled.append(seq)
            leaf = hashes[seq - first] or leaf
        seen.add(seq)
        hashes[seq - first] = leaf
        placed = _PLACED.match(text or "")
        if placed is not None:
            epoch, batch_no = int(placed[1]), int(placed[2])
            if batch_no > batches.get(epoch, -1):
                batches[epoch] = batch_no
    return leaves


def _leaf(text: str | None, raw: bytes | None) -> bytes:
    if text is None:  # a version that this release does not know
        return NO_LEAF
    try:
        return leaf_hash(stored_entry(text, raw))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        return NO_LEAF


async def read_entries(
    connection: AnyConnection, shard: int, numbers: Sequence[int]
) -> AsyncIterator[tuple[int, bytes, bytes | None]]:
    """Yield (seq, canonical bytes, column of bytes if any) of these entries of a shard, unordered."""
    for kind in KINDS:
        for row in await connection.fetch(f"{_SELECTS[kind]} WHERE shard = $1 AND seq = ANY($2)", shard, numbers):
            yield row["seq"], stored_entry(row["entry"], row["raw"]), row["raw"]


# Which shards a log has: also those that only a stray row names, and rows that name none.

_TABLES = (*KINDS.values(), "log_tiles", "log_checkpoints", "log_edges", "shards", "shard_epochs")
_FIRST = "SELECT min(shard) FROM apc_log.{table} WHERE shard IS NOT NULL"
_STRAYS = "SELECT count(*) FROM apc_log.{table} WHERE shard IS NULL"
_NEXT = "SELECT min(shard) FROM apc_log.{table} WHERE shard > $1"


async def list_shards(connection: AnyConnection) -> list[int]:
    """Return every shard that a row of the log names, one look into the primary key for each."""
    shards: set[int] = set()
    for table in _TABLES:
        shard = await connection.fetchval(_FIRST.format(table=table))
        while shard is not None:
            shards.add(shard)
            shard = await connection.fetchval(_NEXT.format(table=table), shard)
    return sorted(shards)


async def find_strays(connection: AnyConnection) -> list[LogFinding]:
    """Return a finding for each table that has rows of no shard."""
    findings = []
    for table in _TABLES:
        count = await connection.fetchval(_STRAYS.format(table=table))
        if count:
            findings.append(LogFinding(None, 1, f"{count} rows of {table} are of no shard", table))
    return findings

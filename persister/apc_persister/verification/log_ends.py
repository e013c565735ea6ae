"""Where the log of a shard ends, by everything that says so: head, epochs, edge, rows, tiles, checkpoints."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from uuid import UUID

import asyncpg

from apc_log.entries import KINDS
from apc_log.errors import ArchiveError
from apc_log.heads import AnyConnection
from apc_log.merkle import HASH_SIZE, TILE_WIDTH, Tree
from apc_persister.errors import TreeBroken
from apc_persister.evidence.rows import leaves_of, list_shards, prepare_reader, read_leaves, read_rows
from apc_persister.evidence.tree import RECORDED_KINDS, Tiles, load_tree
from apc_persister.verification.chunks import CHUNK
from apc_persister.verification.findings import LogFinding, Report

_MOST_ROWS = 1000
"""Rows behind the tree that are named one by one."""
_HEAD = "SELECT epoch, holder, batch_no, next_seq FROM apc_log.shards WHERE shard = $1"
_EPOCHS = """
SELECT coalesce(epoch, -1) AS epoch, holder, mark_epoch, mark_batch_no
FROM apc_log.shard_epochs WHERE shard = $1 ORDER BY epoch
"""
_EDGES = "SELECT count(*) FROM apc_log.log_edges WHERE shard = $1"
_LAST_SEQ = "SELECT max(seq) FROM apc_log.{table} WHERE shard = $1"
LONGEST_WAIT = timedelta(minutes=10)
"""An entry of the guard may wait for the log writer, which signs it within seconds once it runs."""
_BEHIND = """
SELECT coalesce(seq, 0), coalesce(epoch, 0), coalesce(batch_no, 0),
       coalesce(recorded_at BETWEEN clock_timestamp() - $4::interval AND clock_timestamp() + $4::interval, false)
FROM apc_log.{table}
WHERE shard = $1 AND (seq > $2 OR seq < 1 OR seq IS NULL) ORDER BY seq LIMIT $3
"""
_SIZES = """
SELECT tree_size FROM apc_log.log_checkpoints
WHERE shard = $1 AND (tree_size > $2 OR tree_size < 1 OR tree_size IS NULL) ORDER BY tree_size
"""
_LAST_SIZE = "SELECT max(tree_size) FROM apc_log.log_checkpoints WHERE shard = $1"
_TILES = "SELECT coalesce(level, -1), coalesce(index, -1) FROM apc_log.log_tiles WHERE shard = $1"


@dataclass(frozen=True, slots=True)
class StoredHead:
    """A row of table shards."""

    epoch: int
    holder: UUID | None
    batch_no: int
    next_seq: int


@dataclass(slots=True)
class Ends:
    """One moment of a log: what is read of it before its entries are."""

    head: StoredHead | None
    tree: Tree | None
    """By the stored edge; None where there is none, or one that no writer can have stored."""
    size: int
    """Entries in the tree: by the edge, else by the last checkpoint."""
    last_row: int
    """The greatest number that a row has."""
    epochs: list[asyncpg.Record] = field(default_factory=list)
    batches: dict[int, int] = field(default_factory=dict)
    """epoch -> its last batch, by the rows that are not in the tree."""

    @property
    def readable(self) -> int:
        """Up to which entry there is something to read."""
        return min(self.size, self.last_row)


async def read_ends(connection: AnyConnection, shard: int, report: Report) -> Ends:
    """Read where a shard ends, and report what does not fit. Call inside a transaction that sees one moment."""
    heads = [
        StoredHead(row["epoch"] or 0, row["holder"], row["batch_no"] or 0, row["next_seq"] or 1)
        for row in await connection.fetch(_HEAD, shard)
    ]
    head = heads[0] if heads else None
    if len(heads) > 1:
        report.add(1, f"table shards has {len(heads)} rows of shard {shard}", "shards")
    edges = await connection.fetchval(_EDGES, shard)
    if edges > 1:
        report.add(1, f"table log_edges has {edges} rows of shard {shard}", "log_edges")
    tree: Tree | None = None
    try:
        tree = await load_tree(connection, shard)
    except TreeBroken as error:
        report.add(1, str(error), "log_edges")
    tables = [await connection.fetchval(_LAST_SEQ.format(table=table), shard) for table in KINDS.values()]
    last_row = max((seq for seq in tables if seq is not None), default=0)
    last_size = await connection.fetchval(_LAST_SIZE, shard) or 0
    if tree is not None and tree.size < last_size <= last_row:
        # The entries are there: the edge alone is compared, and the rest by the checkpoint.
        what = "no row of this shard" if not edges else f"a tree of {tree.size} entries"
        report.add(1, f"table log_edges has {what}, the last checkpoint has {last_size} entries", "log_edges")
        tree = None
    size = last_size if tree is None else tree.size
    ends = Ends(head, tree, size, last_row, await connection.fetch(_EPOCHS, shard))
    if head is None and (size or last_row or last_size or ends.epochs):
        report.add(1, f"table shards has no row of shard {shard}, whose log is not empty", "shards")
    report.released = await read_released(connection, shard)
    await _compare_sizes(connection, ends, last_size, report)
    await _compare_rows_behind(connection, ends, report)
    await _compare_tile_list(connection, ends, report)
    report.size = size
    return ends


_RELEASED = """
SELECT coalesce(max(last_seq), 0) FROM apc_log.segments WHERE shard = $1 AND state IN ('released', 'expired')
AND first_seq <= (SELECT coalesce(min(first_seq), 0) FROM apc_log.segments WHERE shard = $1
                  AND state NOT IN ('released', 'expired'))
"""


async def read_released(connection: AnyConnection, shard: int) -> int:
    """Return the last entry of a shard before which the archive alone has the rows; the guard lets go in order."""
    released: int = await connection.fetchval(_RELEASED, shard)
    return released


async def _compare_sizes(connection: AnyConnection, ends: Ends, last_size: int, report: Report) -> None:
    size = ends.size
    next_seq = size + 1 if ends.head is None else ends.head.next_seq
    if size >= next_seq:
        message = f"the tree has {size} entries, the log ends at {next_seq - 1}: its tail is cut"
        report.add(next_seq, message, "shards")
    if size > ends.last_row:
        report.add(ends.last_row + 1, f"{_entries(ends.last_row + 1, size)} missing: the log's tail is cut")
    if last_size < size:
        message = f"the last checkpoint has {last_size} entries, the tree {size}"
        report.add(last_size + 1, message, "log_checkpoints")
    for (extra,) in await connection.fetch(_SIZES, report.shard, size):
        message = f"the last checkpoint has {extra} entries, the tree {size}"
        report.add(size + 1, message, f"log_checkpoints {extra}")


async def _compare_rows_behind(connection: AnyConnection, ends: Ends, report: Report) -> None:
    """Check that only entries of the guard follow the last checkpoint, without a gap, up to the end of the log."""
    # Without a head the rows say where the log ends: that it is missing was reported.
    next_seq = max(ends.size, ends.last_row) + 1 if ends.head is None else ends.head.next_seq
    kinds: dict[int, list[str]] = {}
    overdue: set[int] = set()
    for kind, table in KINDS.items():
        rows = await connection.fetch(_BEHIND.format(table=table), report.shard, ends.size, _MOST_ROWS, LONGEST_WAIT)
        for seq, epoch, batch_no, is_recent in rows:
            kinds.setdefault(seq, []).append(kind)
            if not is_recent:
                overdue.add(seq)
            ends.batches[epoch] = max(batch_no, ends.batches.get(epoch, 0))
    expected = ends.size + 1
    for seq, here in sorted(kinds.items()):
        if seq >= next_seq or seq < 1:
            report.add(seq, f"rows up to number {seq} lie beyond the end of the log, which is {next_seq - 1}")
            continue
        if seq > expected:
            report.add(expected, _missing_behind(expected, seq - 1))
        foreign = [KINDS[kind] for kind in here if kind not in RECORDED_KINDS]
        for table in foreign:
            message = f"entry {seq}, behind the last checkpoint, is a row of {table} that came in no batch of a gate"
            report.add(seq, message)
        if len(here) > 1:
            report.add(seq, f"entry {seq} stands twice")
        if not foreign and seq in overdue:
            report.add(seq, _unsigned(seq))
        report.pending += not foreign
        expected = seq + 1
    if len(kinds) < _MOST_ROWS and expected < next_seq:
        report.add(expected, _missing_behind(expected, next_seq - 1), "shards")


def _unsigned(seq: int) -> str:
    minutes = LONGEST_WAIT // timedelta(minutes=1)
    return (
        f"entry {seq}, a row of log_events behind the last checkpoint, was not recorded within the last {minutes} "
        "minutes, and no log writer has signed it: start the log writer if none runs, and find out who wrote the row"
    )


def _missing_behind(first: int, last: int) -> str:
    others = "" if first == last else f", and so are all up to {last}"
    return f"entry {first}, behind the last checkpoint, is missing{others}"


async def _compare_tile_list(connection: AnyConnection, ends: Ends, report: Report) -> None:
    """Check that exactly the full tiles exist that the size requires."""
    levels: dict[int, list[int]] = {}
    for level, index in await connection.fetch(_TILES, report.shard):
        if level < 0 or index < 0 or not _is_full(level, index, ends.size):
            message = f"tile {level}/{index} is not of a tree of {ends.size} entries"
            report.add(ends.size + 1, message, f"log_tiles {level}/{index}")
        else:
            levels.setdefault(level, []).append(index)
    for level, indexes in levels.items():
        for index in sorted(index for index, times in Counter(indexes).items() if times > 1):
            message = f"tile {level}/{index} stands twice"
            report.add(first_below(level, index), message, f"log_tiles {level}/{index}")
    level, count, first = 0, ends.readable // TILE_WIDTH, report.released // TILE_WIDTH
    while count:
        for before, after in pairwise(
            [first - 1, *(one for one in sorted(levels.get(level, ())) if one >= first), count]
        ):
            if after > before + 1:
                _say_missing_tiles(level, before + 1, after - 1, report)
        level, count, first = level + 1, count // TILE_WIDTH, 0  # those above the leaves stay


def _say_missing_tiles(level: int, first: int, last: int, report: Report) -> None:
    what = f"tile {level}/{first} is" if first == last else f"tiles {level}/{first} to {level}/{last} are"
    report.add(first_below(level, first), f"{what} missing", f"log_tiles {level}/{first}")


def _is_full(level: int, index: int, size: int) -> bool:
    return level < 8 and (index + 1) << 8 * (level + 1) <= size


def first_below(level: int, index: int) -> int:
    """Return the number of the first entry below a tile."""
    return (index << 8 * (level + 1)) + 1


def compare_epochs(ends: Ends, batches: Mapping[int, int], report: Report, *, is_whole: bool) -> None:
    """Compare head and epochs of a shard with the last batch of each epoch that the entries name.

    `batches` are those of the entries that were read. Unless they are the whole log, what was before them is taken as
    it is.
    """
    head, after = ends.head, ends.size + 1
    if head is None:
        return
    last = dict(batches)
    for epoch, batch_no in ends.batches.items():
        last[epoch] = max(batch_no, last.get(epoch, 0))
    oldest = 0 if is_whole else min(last, default=head.epoch + 1)
    for epoch, times in Counter(row["epoch"] for row in ends.epochs).items():
        if times > 1:
            report.add(after, f"epoch {epoch} stands twice", f"shard_epochs {epoch}")
    for row in ends.epochs:
        epoch, mark = row["epoch"], (row["mark_epoch"], row["mark_batch_no"])
        wanted = (epoch - 1, last.get(epoch - 1, 0))
        if not 1 <= epoch <= head.epoch:
            report.add(after, f"epoch {epoch} was never given: the head says {head.epoch}", f"shard_epochs {epoch}")
        elif mark[0] != wanted[0] or (epoch > oldest and mark[1] != wanted[1]):
            message = f"epoch {epoch} begins behind batch {mark}, and the entries before it end with {wanted}"
            report.add(after, message, f"shard_epochs {epoch}")
    for epoch in sorted(last):
        if epoch > head.epoch:
            report.add(after, f"there are entries of epoch {epoch}, the head says {head.epoch}", "shards")
    if head.epoch >= oldest and head.batch_no != last.get(head.epoch, 0):
        message = f"the head names batch {head.batch_no} of epoch {head.epoch}, the entries {last.get(head.epoch, 0)}"
        report.add(after, message, "shards")
    _compare_holders(head, {row["epoch"]: row["holder"] for row in ends.epochs}, after, report)


def _compare_holders(head: StoredHead, holders: Mapping[int, UUID], after: int, report: Report) -> None:
    for before, epoch in pairwise([0, *sorted(epoch for epoch in holders if epoch > 0), head.epoch + 1]):
        if epoch > before + 1 and before < head.epoch:
            report.add(after, f"epoch {before + 1} is missing", f"shard_epochs {before + 1}")
    if head.holder != holders.get(head.epoch):
        report.add(after, f"the head's holder is not the one that epoch {head.epoch} was given to", "shards")


def _entries(first: int, last: int) -> str:
    return f"entry {first} is" if first == last else f"entries {first} to {last} are"


# What can be told of a log without reading it: where it ends, and whether the registry's changes are in the tree.

_LAST_ROOT = "SELECT root_hash FROM apc_log.log_checkpoints WHERE shard = $1 ORDER BY tree_size DESC LIMIT 1"
_RELEASED_CHANGES = """
SELECT count(*) FROM apc_log.registry_events AS change JOIN apc_log.segments AS gone
  ON gone.shard = change.shard AND change.seq BETWEEN first_seq AND last_seq AND state IN ('released', 'expired')
"""
# Tables that are not divided: as many rows as the record of a segment says.
_KEPT_KINDS = """
SELECT first_seq, kind, coalesce((manifest -> 'counts' ->> kind)::bigint, 0) AS wanted, found
FROM apc_log.segments AS gone CROSS JOIN LATERAL (
    SELECT 'registry', count(*) FROM apc_log.registry_events WHERE shard = $1 AND seq BETWEEN first_seq AND last_seq
    UNION ALL
    SELECT 'log', count(*) FROM apc_log.log_events WHERE shard = $1 AND seq BETWEEN first_seq AND last_seq
) AS kept(kind, found)
WHERE gone.shard = $1 AND state IN ('released', 'expired') ORDER BY first_seq
"""
_CHANGES = "SELECT shard, array_agg(seq ORDER BY seq) AS numbers FROM apc_log.registry_events GROUP BY shard ORDER BY 1"


async def check_ends(connection: AnyConnection) -> list[LogFinding]:
    """Report rows after the last checkpoint that no orchestrator sent, and heads and edges that do not fit."""
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        for shard in await list_shards(connection):
            report = Report(shard)
            ends = await read_ends(connection, shard, report)
            if ends.tree is not None and ends.size:
                root = await connection.fetchval(_LAST_ROOT, shard)
                if root != ends.tree.root:
                    report.add(ends.size, "the stored edge of the tree is not the one that was signed", "log_edges")
            findings += report.findings
    return findings


ReadLeaf = Callable[[int, int], Awaitable[bytes]]
"""Gives the leaf hash of an entry: of a shard, and of its seq."""


async def check_registry(connection: AnyConnection, released_leaf: ReadLeaf | None = None) -> list[LogFinding]:
    """Find changes of the registry that are not in the tree, where the orchestrator takes them from.

    Leaves of released entries are in the archive: without `released_leaf` these are left out.
    """
    findings: list[LogFinding] = []
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await prepare_reader(connection)
        for row in await connection.fetch(_CHANGES):
            findings += await _check_changes(connection, row["shard"], row["numbers"], released_leaf)
    return findings


async def compare_stayed(connection: AnyConnection, report: Report, released_leaf: ReadLeaf) -> None:
    """Compare the rows of released entries that stay in the database with their leaves in the archive.

    Nothing is said of a row that is gone, but of registrations and of entries about the log: those are never let go of.
    """
    assert report.shard is not None
    report.stayed = 0
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        await prepare_reader(connection)
        for first in range(1, report.released + 1, CHUNK):
            last = min(first + CHUNK - 1, report.released)
            rows = await read_rows(connection, report.shard, first, last)
            leaves = leaves_of(first, last, rows)
            for seq in leaves.doubled:
                report.add(seq, f"entry {seq} stands twice")
            for seq in sorted({row["seq"] for row in rows}):
                try:
                    wanted = await released_leaf(report.shard, seq)
                except ArchiveError as error:
                    report.add(seq, f"entry {seq} cannot be compared: {error}")
                    return
                if leaves.hashes[seq - first] != wanted:
                    report.add(seq, f"entry {seq}, which stays in the database, differs from its leaf in the archive")
            report.stayed += len(rows)
    for row in await connection.fetch(_KEPT_KINDS, report.shard):
        if row["found"] != row["wanted"]:
            message = f"{row['wanted']} entries of {row['kind']} were recorded with a segment, {row['found']} are there"
            report.add(row["first_seq"], message, f"segments {row['first_seq']}")


async def count_released_changes(connection: AnyConnection) -> int:
    """Return how many changes of the registry have their leaves in the archive alone."""
    count: int = await connection.fetchval(_RELEASED_CHANGES)
    return count


async def _check_changes(
    connection: AnyConnection, shard: int, numbers: list[int], released_leaf: ReadLeaf | None
) -> list[LogFinding]:
    try:
        tiles = Tiles(connection, shard, await load_tree(connection, shard))
    except TreeBroken:
        return [LogFinding(shard, numbers[0], "the tree of the shard cannot be read", "log_edges")]
    findings, released = [], await read_released(connection, shard)
    for seq in numbers:
        if 1 <= seq <= released:
            if released_leaf is None:
                continue
            leaf = await released_leaf(shard, seq)
        else:
            leaf = await _leaf(tiles, seq) if 1 <= seq <= tiles.tree.size else b""
        leaves = await read_leaves(connection, shard, seq, seq)
        is_covered = leaves.hashes[0] == leaf != b""
        if leaves.doubled or not is_covered:
            message = f"entry {seq} is a change of the registry that is not in the tree"
            findings.append(LogFinding(shard, seq, message, f"entry {seq}"))
    return findings


async def _leaf(tiles: Tiles, seq: int) -> bytes:
    at = (seq - 1) % TILE_WIDTH
    try:
        hashes = await tiles.hashes(0, (seq - 1) // TILE_WIDTH, at + 1)
    except TreeBroken:
        return b""
    return hashes[at * HASH_SIZE :]

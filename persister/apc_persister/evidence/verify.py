"""Recomputes the tree of a shard from its rows; compares it with tiles, checkpoints, and those held outside."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import asyncpg

from apc_persister.check import CheckFailed, Checkpoint, PublicKey, parse_note
from apc_persister.connection import AnyConnection
from apc_persister.errors import TreeBroken
from apc_persister.evidence.entries import KINDS
from apc_persister.evidence.merkle import HASH_SIZE, TILE_WIDTH, Frontier, Tile, Tree
from apc_persister.evidence.reading import Leaves, leaves_of, prepare_reader, read_rows
from apc_persister.evidence.tiles import Tiles

CHUNK = 32 * TILE_WIDTH
"""Entries that are in memory at a time."""

_CHECKPOINTS = """
SELECT tree_size, root_hash, note FROM apc_log.log_checkpoints
WHERE shard = $1 AND tree_size > $2 AND tree_size <= $3 ORDER BY tree_size
"""
_TILES = """
SELECT tile.level, tile.index, tile.hashes FROM generate_series(0, 6) AS above(level)
JOIN apc_log.log_tiles AS tile
  ON tile.shard = $1 AND tile.level = above.level
 AND tile.index BETWEEN ($2::bigint - 1) >> 8 * (above.level + 1) AND ($3::bigint - 1) >> 8 * (above.level + 1)
"""
_NEXT_SEQ = "SELECT next_seq FROM apc_log.shards WHERE shard = $1"
_LAST_SEQ = "SELECT max(seq) FROM apc_log.{table} WHERE shard = $1"
_LAST_CHECKPOINT = "SELECT max(tree_size) FROM apc_log.log_checkpoints WHERE shard = $1"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not fit. `seq` is the first entry that it can be about."""

    shard: int
    seq: int
    message: str


@dataclass(slots=True)
class Report:
    """What `verify` found in one shard."""

    shard: int
    size: int = 0
    """Entries in the tree."""
    root: bytes = b""
    """Recomputed, unless there are findings."""
    entries: int = 0
    """Entries that were recomputed."""
    checkpoints: int = 0
    """Stored checkpoints that were recomputed."""
    outside: int = 0
    """Checkpoints held outside that were compared."""
    pending: int = 0
    """Entries that wait for the writer to take them into the tree (maintenance by SQL)."""
    findings: list[Finding] = field(default_factory=list)

    def add(self, seq: int, message: str) -> None:
        """Take a finding in."""
        self.findings.append(Finding(self.shard, seq, message))

    @property
    def first(self) -> Finding | None:
        """The finding about the earliest entry."""
        return min(self.findings, key=lambda finding: finding.seq, default=None)


async def verify_shard(
    connection: AnyConnection,
    shard: int,
    key: PublicKey,
    *,
    first: int = 1,
    outside: Iterable[Checkpoint] = (),
    progress: Callable[[int], None] = lambda entries: None,
) -> Report:
    """Recompute what the log of a shard says from its rows, from entry `first` on.

    The log may grow meanwhile. Stops at the first chunk of entries that do not fit. `outside` are checkpoints whose
    signature was checked already; `progress` is told the number of entries after each chunk.
    """
    return await _Verification(connection, shard, key, outside, progress).run(first)


class _Verification:
    def __init__(
        self,
        connection: AnyConnection,
        shard: int,
        key: PublicKey,
        outside: Iterable[Checkpoint],
        progress: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._key = key
        self._progress = progress
        self._outside: dict[int, set[bytes]] = {}
        for checkpoint in outside:
            self._outside.setdefault(checkpoint.size, set()).add(checkpoint.root)
        self.report = Report(shard)
        self._arriving: asyncio.Task[_Chunk] | None = None
        self._good = 0
        """Size of the last checkpoint that fits."""

    async def run(self, first: int) -> Report:
        with _quick_switches():
            try:
                return await self._run(first)
            finally:
                if self._arriving is not None:
                    self._arriving.cancel()
                    await asyncio.wait({self._arriving})

    async def _run(self, first: int) -> Report:
        report = self.report
        await prepare_reader(self._connection)
        tiles = await self._open()
        try:
            tree = await tiles.tree_at((first - 1) // TILE_WIDTH * TILE_WIDTH if first <= tiles.tree.size else 0)
        except TreeBroken as error:
            report.add(1, str(error))
            return report
        self._good = tree.size
        frontier = Frontier.of(tree)
        opening = len(report.findings)
        while tree.size < tiles.tree.size and len(report.findings) == opening:
            chunk, leaves = await self._next(tree.size + 1, tiles.tree.size)
            recomputed, full = tree.extend(leaves.hashes)
            self._compare_tiles(tiles.tree, leaves, full, chunk.tiles)
            if len(report.findings) == opening:  # a checkpoint that differs says less than the entry
                roots = {tile.index: tile.root for tile in full if tile.level == 0}
                self._compare_checkpoints(frontier, leaves.hashes, roots, chunk.checkpoints)
            tree = recomputed
            report.entries += len(leaves.hashes)
            self._progress(len(leaves.hashes))
        if not report.findings:
            report.root = tree.root
            if tree != tiles.tree:
                report.add(tree.size, "the stored edge of the tree differs from the entries")
        return report

    async def _next(self, first: int, size: int) -> tuple["_Chunk", Leaves]:
        """A chunk and its leaves. They are hashed in a thread while the rows of the chunk after it arrive."""
        chunk = await (self._arriving or self._read(first, size))
        self._arriving = None
        if chunk.last < size:
            self._arriving = asyncio.create_task(self._read(chunk.last + 1, size))
        return chunk, await asyncio.to_thread(leaves_of, first, chunk.last, chunk.rows)

    async def _read(self, first: int, size: int) -> "_Chunk":
        last = min(first + CHUNK - 1, size)
        tiles = await self._connection.fetch(_TILES, self._shard, first, last)
        return _Chunk(
            last,
            await read_rows(self._connection, self._shard, first, last),
            {(row["level"], row["index"]): row["hashes"] for row in tiles},
            await self._connection.fetch(_CHECKPOINTS, self._shard, first - 1, last),
        )

    async def _open(self) -> Tiles:
        """The tree as stored, and what can be said without reading a row."""
        report = self.report
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            tiles = await Tiles.open(self._connection, self._shard)
            next_seq = await self._connection.fetchval(_NEXT_SEQ, self._shard) or 1
            tables = [
                await self._connection.fetchval(_LAST_SEQ.format(table=table), self._shard) for table in KINDS.values()
            ]
            last_checkpoint = await self._connection.fetchval(_LAST_CHECKPOINT, self._shard) or 0
        report.size = tiles.tree.size
        report.pending = max(0, next_seq - 1 - report.size)
        last = max((seq for seq in tables if seq is not None), default=0)
        if last >= next_seq:
            report.add(next_seq, f"rows up to number {last} lie beyond the end of the log, which is {next_seq - 1}")
        if report.size >= next_seq:
            report.add(next_seq, f"the tree has {report.size} entries, the log ends at {next_seq - 1}: its tail is cut")
        if last_checkpoint != report.size:
            cut = min(last_checkpoint, report.size) + 1
            report.add(cut, f"the last checkpoint has {last_checkpoint} entries, the tree {report.size}")
        for size in sorted(self._outside):
            if size > report.size:
                report.add(
                    report.size + 1,
                    f"a checkpoint held outside has {size} entries, the log only {report.size}: its tail is cut",
                )
                break
        return tiles

    def _compare_tiles(
        self, tree: Tree, leaves: Leaves, full: Sequence[Tile], stored: Mapping[tuple[int, int], bytes]
    ) -> None:
        """Leaf by leaf with level 0, tile by tile above it."""
        before = leaves.first - 1
        for index in range(before // TILE_WIDTH, (before + len(leaves.hashes) - 1) // TILE_WIDTH + 1):
            is_edge = index == tree.size // TILE_WIDTH
            level_0 = tree.edge[0] if is_edge else stored.get((0, index), b"")
            self._compare_leaves(leaves, index * TILE_WIDTH - before, level_0)
        for doubled in leaves.doubled:
            self.report.add(doubled, f"entry {doubled} stands twice, in two tables")
        if self.report.findings:
            return
        for tile in full:
            if stored.get((tile.level, tile.index)) != tile.hashes:
                first = (tile.index << 8 * (tile.level + 1)) + 1
                self.report.add(first, f"tile {tile.level}/{tile.index} differs from the entries below it")

    def _compare_leaves(self, leaves: Leaves, at: int, stored: bytes) -> None:
        found = leaves.hashes[at : at + TILE_WIDTH]
        if b"".join(found) == stored:
            return
        for offset, leaf in enumerate(found):
            if leaf != stored[offset * HASH_SIZE : (offset + 1) * HASH_SIZE]:
                seq = leaves.first + at + offset
                what = "differs from its leaf in the tree" if leaf else "is missing, or of no known kind and version"
                self.report.add(seq, f"entry {seq} {what}")
                return

    def _compare_checkpoints(
        self,
        frontier: Frontier,
        hashes: Sequence[bytes],
        roots: Mapping[int, bytes],
        rows: Sequence[asyncpg.Record],
    ) -> None:
        before = frontier.size
        stored = {row["tree_size"]: row for row in rows}
        sizes = {size for size in self._outside if before < size <= before + len(hashes)} | stored.keys()
        for size in sorted({*sizes, before + len(hashes)}):
            while frontier.size < size:
                index, place = divmod(frontier.size, TILE_WIDTH)
                if place == 0 and index in roots and frontier.size + TILE_WIDTH <= size:
                    frontier.append_tile(roots[index])
                else:
                    frontier.append(hashes[frontier.size - before])
            root = frontier.root
            if size in stored:
                self._compare_stored(size, root, stored[size]["root_hash"], stored[size]["note"])
            if size in self._outside:
                self.report.outside += 1
                if self._outside[size] != {root}:
                    self._say_rewritten(size, "a checkpoint held outside")
            if size in sizes and not self.report.findings:
                self._good = size

    def _compare_stored(self, size: int, root: bytes, stored: bytes, note: str) -> None:
        self.report.checkpoints += 1
        if stored != root:
            self._say_rewritten(size, "the stored checkpoint")
            return
        try:
            checkpoint = parse_note(note).check(self._key)
        except CheckFailed as error:
            self.report.add(self._good + 1, f"stored checkpoint of {size} entries: {error}")
            return
        if (checkpoint.size, checkpoint.root) != (size, root):
            self.report.add(self._good + 1, f"the note of the stored checkpoint of {size} entries says something else")

    def _say_rewritten(self, size: int, which: str) -> None:
        between = f"an entry from {self._good + 1} to {size} was changed"
        self.report.add(self._good + 1, f"{which} of {size} entries differs from the entries: {between}")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What the database says of the entries up to `last`."""

    last: int
    rows: list[asyncpg.Record]
    tiles: Mapping[tuple[int, int], bytes]
    """(level, index) -> hashes."""
    checkpoints: Sequence[asyncpg.Record]


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Let the loop have the interpreter soon while a thread hashes: by default it waits 5 ms for each piece of rows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)

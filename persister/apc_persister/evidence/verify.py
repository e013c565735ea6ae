"""Recomputes the tree of a shard from its rows; compares it with tiles, checkpoints, and those held outside."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from apc_persister.check import Checkpoint, PublicKey
from apc_persister.connection import AnyConnection
from apc_persister.errors import EntryForeign, TreeBroken
from apc_persister.evidence.chunks import Chunk, Helpers, Keys, StoredCheckpoint, read_here
from apc_persister.evidence.entries import KINDS
from apc_persister.evidence.merkle import HASH_SIZE, TILE_WIDTH, Frontier, Tile, Tree
from apc_persister.evidence.reading import Leaves
from apc_persister.evidence.tiles import Tiles
from apc_persister.evidence.unattested import read_recorded

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
    """Entries that the guard recorded and the writer has not taken into the tree yet."""
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
    older: Iterable[PublicKey] = (),
    first: int = 1,
    outside: Iterable[Checkpoint] = (),
    progress: Callable[[int], None] = lambda entries: None,
    helpers: Helpers | None = None,
) -> Report:
    """Recompute what the log of a shard says from its rows, from entry `first` on.

    `key` and the `older` ones, which the log had before, are those that may have signed its stored checkpoints.
    The log may grow meanwhile. Stops at the first chunk of entries that do not fit. `outside` are checkpoints whose
    signature was checked already; `progress` is told the number of entries after each chunk. `helpers` share the work
    out to processes; without them it is done here, over `connection`.
    """
    return await _Verification(connection, shard, (key, *older), outside, progress).run(first, helpers)


class _Verification:
    def __init__(
        self,
        connection: AnyConnection,
        shard: int,
        keys: Keys,
        outside: Iterable[Checkpoint],
        progress: Callable[[int], None],
    ) -> None:
        self._connection = connection
        self._shard = shard
        self._keys = keys
        self._progress = progress
        self._outside: dict[int, set[bytes]] = {}
        for checkpoint in outside:
            self._outside.setdefault(checkpoint.size, set()).add(checkpoint.root)
        self.report = Report(shard)
        self._good = 0
        """Size of the last checkpoint that fits."""

    async def run(self, first: int, helpers: Helpers | None) -> Report:
        report = self.report
        tiles = await self._open()
        try:
            tree = await tiles.tree_at((first - 1) // TILE_WIDTH * TILE_WIDTH if first <= tiles.tree.size else 0)
        except TreeBroken as error:
            report.add(1, str(error))
            return report
        self._good = tree.size
        frontier = Frontier.of(tree)
        opening = len(report.findings)
        start, size = tree.size + 1, tiles.tree.size
        chunks = (
            read_here(self._connection, self._shard, self._keys, start, size)
            if helpers is None
            else helpers.read(self._shard, self._keys, start, size)
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                tree = self._take(chunk, tree, tiles.tree, frontier)
                if len(report.findings) > opening:
                    break
        if not report.findings:
            report.root = tree.root
            if tree != tiles.tree:
                report.add(tree.size, "the stored edge of the tree differs from the entries")
        return report

    def _take(self, chunk: Chunk, tree: Tree, stored: Tree, frontier: Frontier) -> Tree:
        """Compare a chunk with what the database says of the tree; the recomputed tree with it."""
        leaves = chunk.leaves
        before = len(self.report.findings)
        recomputed, full = tree.extend(leaves.hashes, chunk.roots)
        self._compare_tiles(stored, leaves, full, chunk.tiles)
        if len(self.report.findings) == before:  # a checkpoint that differs says less than the entry
            self._compare_checkpoints(frontier, chunk)
        self.report.entries += len(leaves.hashes)
        self._progress(len(leaves.hashes))
        return recomputed

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
            await self._look_behind(tiles.tree.size + 1, next_seq - 1)
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

    async def _look_behind(self, first: int, last: int) -> None:
        """What the tree does not cover yet must be what the guard recorded."""
        try:
            async for _ in read_recorded(self._connection, self._shard, first, last):
                pass
        except EntryForeign as error:
            self.report.add(error.seq, error.finding)

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

    def _compare_checkpoints(self, frontier: Frontier, chunk: Chunk) -> None:
        hashes = chunk.leaves.hashes
        before = frontier.size
        stored = {checkpoint.size: checkpoint for checkpoint in chunk.checkpoints}
        sizes = {size for size in self._outside if before < size <= before + len(hashes)} | stored.keys()
        for size in sorted({*sizes, before + len(hashes)}):
            while frontier.size < size:
                place = frontier.size - before
                if place % TILE_WIDTH == 0 and frontier.size + TILE_WIDTH <= size:
                    frontier.append_tile(chunk.roots[place // TILE_WIDTH])
                else:
                    frontier.append(hashes[place])
            root = frontier.root
            if size in stored:
                self._compare_stored(stored[size], root)
            if size in self._outside:
                self.report.outside += 1
                if self._outside[size] != {root}:
                    self._say_rewritten(size, "a checkpoint held outside")
            if size in sizes and not self.report.findings:
                self._good = size

    def _compare_stored(self, stored: StoredCheckpoint, root: bytes) -> None:
        self.report.checkpoints += 1
        if stored.root != root:
            self._say_rewritten(stored.size, "the stored checkpoint")
        elif stored.fault is not None:
            self.report.add(self._good + 1, stored.fault)

    def _say_rewritten(self, size: int, which: str) -> None:
        between = f"an entry from {self._good + 1} to {size} was changed"
        self.report.add(self._good + 1, f"{which} of {size} entries differs from the entries: {between}")

"""Recomputes the tree of a shard from its rows; compares it with tiles, checkpoints, and those held outside.

Nothing that stands in the database makes it raise: what cannot be read is a finding, with its place.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise

import asyncpg

from apc_log.heads import AnyConnection
from apc_log.merkle import HASH_SIZE, TILE_WIDTH, Frontier, Tile, Tree, fold, split_hashes
from apc_log.offline_verifier import Checkpoint, PublicKey
from apc_persister.errors import TreeBroken
from apc_persister.evidence.tree import Tiles
from apc_persister.verification.chunks import Chunk, Helpers, Keys, StoredCheckpoint, read_here
from apc_persister.verification.findings import LogFinding, Report
from apc_persister.verification.log_ends import Ends, compare_epochs, first_below, read_ends

__all__ = ["UNREADABLE", "LogFinding", "Report", "verify_shard"]

UNREADABLE = (asyncpg.SyntaxOrAccessError, asyncpg.DataError, asyncpg.InternalServerError)
"""What a database raises whose tables are not those of the log, or are damaged."""
_MOST_EMPTY = 16
"""Chunks without a row, one after the other, behind which nothing more is looked for."""


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
    The log may grow meanwhile. `outside` are checkpoints whose signature was checked already; `progress` is told the
    number of entries after each chunk. `helpers` share the work out to processes; without them it is done here, over
    `connection`.

    Raises:
        asyncpg.InsufficientPrivilegeError: the database's user may not read the log.
        OSError, asyncpg.PostgresError, asyncpg.InterfaceError: the database went away.
    """
    verification = _Verification(connection, shard, (key, *older), outside, progress)
    try:
        await verification.run(first, helpers)
    except asyncpg.InsufficientPrivilegeError:
        raise
    except UNREADABLE as error:
        verification.report.add(1, f"the log cannot be read: {str(error).splitlines()[0]}", "schema apc_log")
    return verification.report


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
        self._tree: Tree | None = None
        """Recomputed; None from where an entry is lost that no tile stands for."""
        self._frontier = Frontier()
        self._batches: dict[int, int] = {}
        self._empty = 0
        self._edge_differs_at: int | None = None
        """The first entry whose leaf in the stored edge is another one, though the entry is the signed one."""

    async def run(self, first: int, helpers: Helpers | None) -> None:
        report = self.report
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            ends = await read_ends(self._connection, self._shard, report)
            self._tree = await self._begin(ends, max(first, report.released + 1))
        self._compare_exported_size(ends)
        if self._tree is None:
            return
        start = self._good = self._tree.size
        self._frontier = Frontier.of(self._tree)
        await self._read(ends, start + 1, helpers)
        if self._empty < _MOST_EMPTY:
            compare_epochs(ends, self._batches, report, is_whole=start == 0)
        if self._tree is not None and ends.tree is not None and ends.tree.size == ends.readable:
            if self._tree != ends.tree:
                at = self._edge_differs_at or self._tree.size
                report.add(at, "the stored edge of the tree differs from the entries", "log_edges")
            if not report.findings:
                report.root = self._tree.root

    async def _begin(self, ends: Ends, first: int) -> Tree | None:
        """Return the tree in front of the tile of entry `first`, as the stored tiles have it."""
        if first <= TILE_WIDTH or ends.tree is None or first > ends.readable:
            return Tree()
        tiles = Tiles(self._connection, self._shard, ends.tree)
        try:
            return await tiles.tree_at((first - 1) // TILE_WIDTH * TILE_WIDTH)
        except TreeBroken as error:
            self.report.add(1, str(error), "log_tiles")
            return None

    def _compare_exported_size(self, ends: Ends) -> None:
        beyond = [size for size in sorted(self._outside) if size > ends.size]
        if beyond:
            message = f"a checkpoint held outside has {beyond[0]} entries, the log only {ends.size}: its tail is cut"
            self.report.add(ends.size + 1, message, f"checkpoint {beyond[0]} outside")

    async def _read(self, ends: Ends, start: int, helpers: Helpers | None) -> None:
        chunks = (
            read_here(self._connection, self._shard, self._keys, start, ends.readable)
            if helpers is None
            else helpers.read(self._shard, self._keys, start, ends.readable)
        )
        async with aclosing(chunks):
            async for chunk in chunks:
                self._take(chunk, ends)
                self._empty = 0 if any(chunk.leaves.hashes) else self._empty + 1
                if self._empty == _MOST_EMPTY:
                    break

    def _take(self, chunk: Chunk, ends: Ends) -> None:
        """Compare a chunk with what the database says of the tree."""
        leaves = chunk.leaves
        for epoch, batch_no in leaves.batches.items():
            self._batches[epoch] = max(batch_no, self._batches.get(epoch, 0))
        for doubled in leaves.doubled:
            self.report.add(doubled, f"entry {doubled} stands twice")
        settled, roots = self._settle(chunk, ends)
        if self._tree is not None:
            self._tree, full = self._tree.extend(settled, roots)
            self._compare_tiles(full, chunk.tiles)
        self._compare_checkpoints(chunk, settled, roots)
        if len(settled) < len(leaves.hashes):
            self._tree = None
        self.report.entries += len(leaves.hashes)
        self._progress(len(leaves.hashes))

    def _settle(self, chunk: Chunk, ends: Ends) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Compare the entries with their leaves in the tree; the leaves that the tree was made of, and their roots.

        Where an entry is no more what it was, the tile tells, if the tree above it says so. The leaves end where
        nothing tells.
        """
        leaves, before = chunk.leaves, chunk.leaves.first - 1
        settled, roots = leaves.hashes, chunk.roots
        is_lost = self._tree is None
        for at in range(0, len(leaves.hashes), TILE_WIDTH):
            index = (before + at) // TILE_WIDTH
            hashes = leaves.hashes[at : at + TILE_WIDTH]
            stored = _stored_leaves(ends, chunk, index)
            if stored is not None and b"".join(hashes) == stored and len(stored) == len(hashes) * HASH_SIZE:
                continue
            settled_here, above = None, _root_above(ends, chunk, index)
            is_last = index == ends.size // TILE_WIDTH
            if not is_lost:
                settled_here = _original(hashes, stored or b"", above)
                if settled_here is None and is_last:
                    settled_here = self._signed_edge(chunk, (settled[:at], roots[: at // TILE_WIDTH]), hashes, stored)
            is_as_signed = settled_here == hashes and (is_last or fold(hashes) == above)
            if stored is not None and is_as_signed:
                self._say_changed_tile(ends, index, hashes, stored)
            elif stored is not None or not all(hashes):
                self._compare_leaves(leaves.first + at, hashes, stored)
            if is_lost:
                continue
            if settled_here is None:
                settled, roots, is_lost = settled[:at], roots[: at // TILE_WIDTH], True
            elif settled_here != hashes:
                settled = [*settled[:at], *settled_here, *settled[at + TILE_WIDTH :]]
                if len(settled_here) == TILE_WIDTH:  # the last tile has no root yet
                    roots = [*roots[: at // TILE_WIDTH], fold(settled_here), *roots[at // TILE_WIDTH + 1 :]]
        return ([], []) if self._tree is None else (settled, roots)

    def _signed_edge(
        self,
        chunk: Chunk,
        before: tuple[Sequence[bytes], Sequence[bytes]],
        found: Sequence[bytes],
        stored: bytes | None,
    ) -> Sequence[bytes] | None:
        """Return the hashes of the last, incomplete tile that the last signed checkpoint is of; None if neither is."""
        last = chunk.checkpoints[-1] if chunk.checkpoints else None
        if last is None or last.signed is None or self._tree is None:
            return None
        tree, _ = self._tree.extend(*before)
        for leaves in (found, split_hashes(stored or b"")):
            fits = len(leaves) == last.size - tree.size and all(len(leaf) == HASH_SIZE for leaf in leaves)
            if fits and tree.extend(leaves)[0].root == last.signed:
                return leaves
        return None

    def _say_changed_tile(self, ends: Ends, index: int, found: Sequence[bytes], stored: bytes) -> None:
        """Say that the entries fit the tree above a tile, and the tile does not; of the edge, `run` says it."""
        pairs = zip(found, split_hashes(stored), strict=False)
        place = next((at for at, (leaf, other) in enumerate(pairs) if leaf != other), 0)
        seq = first_below(0, index) + place
        if index == ends.size // TILE_WIDTH:
            self._edge_differs_at = seq
        else:
            message = f"tile 0/{index} was changed: the entries below it fit the tree above it"
            self.report.add(seq, message, f"log_tiles 0/{index}")

    def _compare_leaves(self, first: int, found: Sequence[bytes], stored: bytes | None) -> None:
        """Name each entry that differs from its leaf, and each that is missing."""
        wanted = split_hashes(stored or b"")
        if stored is not None and len(stored) != len(found) * HASH_SIZE:
            tile = f"0/{(first - 1) // TILE_WIDTH}"
            message = f"tile {tile} has {len(stored)} bytes, and there are {len(found)} entries from {first} on"
            self.report.add(first, message, f"log_tiles {tile}")
        for place, leaf in enumerate(found):
            if not leaf:
                self.report.add(first + place, f"entry {first + place} is missing, or of no known kind and version")
            elif place < len(wanted) and leaf != wanted[place]:
                self.report.add(first + place, f"entry {first + place} differs from its leaf in the tree")

    def _compare_tiles(self, full: Sequence[Tile], stored: Mapping[tuple[int, int], bytes]) -> None:
        """Compare tiles above level 0, which was compared leaf by leaf. Missing ones were reported before."""
        for tile in full:
            if tile.level and stored.get((tile.level, tile.index), tile.hashes) != tile.hashes:
                message = f"tile {tile.level}/{tile.index} differs from the entries below it"
                place = f"log_tiles {tile.level}/{tile.index}"
                self.report.add(first_below(tile.level, tile.index), message, place)

    def _compare_checkpoints(self, chunk: Chunk, leaves: Sequence[bytes], roots: Sequence[bytes]) -> None:
        first, last = chunk.leaves.first, chunk.leaves.first + len(chunk.leaves.hashes) - 1
        stored = {checkpoint.size: checkpoint for checkpoint in chunk.checkpoints}
        for earlier, later in pairwise(chunk.checkpoints):
            if earlier.size == later.size:
                message = f"the checkpoint of {earlier.size} entries stands twice"
                self.report.add(self._good + 1, message, f"log_checkpoints {earlier.size}")
        outside = {size for size in self._outside if first <= size <= last}
        known = first - 1 + len(leaves) if self._tree is not None else 0
        for size in sorted(outside | stored.keys()):
            root = self._root_at(size, first, leaves, roots) if size <= known else None
            before = len(self.report.findings)
            if size in stored:
                self._compare_stored(stored[size], root)
            if size in outside:
                self._compare_exported(size, root, stored.get(size))
            if root is not None and len(self.report.findings) == before:
                self._good = size
        if known == last:
            self._root_at(last, first, leaves, roots)

    def _root_at(self, size: int, first: int, leaves: Sequence[bytes], roots: Sequence[bytes]) -> bytes:
        """Extend the frontier up to a size; return the root there."""
        frontier = self._frontier
        while frontier.size < size:
            place = frontier.size - (first - 1)
            if place % TILE_WIDTH == 0 and frontier.size + TILE_WIDTH <= size:
                frontier.append_tile(roots[place // TILE_WIDTH])
            else:
                frontier.append(leaves[place])
        return frontier.root

    def _compare_stored(self, stored: StoredCheckpoint, root: bytes | None) -> None:
        place = f"log_checkpoints {stored.size}"
        if root is not None:
            self.report.checkpoints += 1
        if root is not None and stored.signed not in (None, root):
            self._say_rewritten(stored.size, "the stored checkpoint", place)
        elif stored.fault is not None:
            self.report.add(self._good + 1, stored.fault, place)

    def _compare_exported(self, size: int, root: bytes | None, stored: StoredCheckpoint | None) -> None:
        place = f"checkpoint {size} outside"
        if stored is None:
            message = f"the checkpoint of {size} entries is held outside, and the database has it no more"
            self.report.add(size, message, f"log_checkpoints {size}")
        if root is None:
            root = None if stored is None else stored.signed
        else:
            self.report.outside += 1
        if root is not None and self._outside[size] != {root}:
            self._say_rewritten(size, "a checkpoint held outside", place)

    def _say_rewritten(self, size: int, which: str, place: str) -> None:
        between = f"an entry from {self._good + 1} to {size} was changed"
        message = f"{which} of {size} entries differs from the entries: {between}"
        self.report.add(self._good + 1, message, place)


def _stored_leaves(ends: Ends, chunk: Chunk, index: int) -> bytes | None:
    """Return the tile of level 0 as stored; None where there is none."""
    if index == ends.size // TILE_WIDTH:
        return ends.tree.edge[0] if ends.tree is not None and ends.readable == ends.size else None
    return (chunk.tiles[0, index] or b"") if (0, index) in chunk.tiles else None


def _root_above(ends: Ends, chunk: Chunk, index: int) -> bytes | None:
    """Return the root over a tile of level 0 by the level above, as stored."""
    tile, place = divmod(index, TILE_WIDTH)
    if tile == (ends.size >> 8) // TILE_WIDTH:
        row = ends.tree.edge[1] if ends.tree is not None and len(ends.tree.edge) > 1 else b""
    else:
        row = chunk.tiles.get((1, tile), b"")
    return row[place * HASH_SIZE : (place + 1) * HASH_SIZE] or None


def _original(found: Sequence[bytes], stored: bytes, root: bytes | None) -> Sequence[bytes] | None:
    """Return the hashes, of a tile or of the entries below it, that match the tree above; None if neither does."""
    if not stored and all(found):
        return found
    for leaves in (found, split_hashes(stored)):
        if len(leaves) == TILE_WIDTH and all(leaves) and fold(leaves) == root:
            return leaves
    return None

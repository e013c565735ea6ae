"""The Merkle tree of a shard in the database: its leaves, signed heads, tiles and proofs.

Behind the last checkpoint only what the guard of the database records itself may stand (an erasure, a maintenance;
docs/explanation/log-security.md); it waits there for the writer. What a batch of an orchestrator brought is signed in
the transaction that stores it. Anything else was not sent by an orchestrator.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import count

from apc_bus.crash_points import crash_point
from apc_log.entries import KINDS
from apc_log.heads import AnyConnection
from apc_log.merkle import HASH_SIZE, TILE_WIDTH, Tile, Tree, fold, split_hashes
from apc_log.offline_verifier import CheckFailed, parse_note
from apc_persister.errors import EntryForeign, TreeBroken
from apc_persister.evidence.checkpoint import Signer
from apc_persister.evidence.rows import Leaves, leaves_of, prepare_reader, read_rows
from apc_persister.verification.chunks import check_note

RECORDED_KINDS = ("log",)
"""Kinds of entries that the guard records; nobody else can (migrations/sql/0107_guard.sql)."""
_PIECE = 50_000


async def read_recorded(connection: AnyConnection, shard: int, first: int, last: int) -> AsyncIterator[list[bytes]]:
    """Yield the leaves of entries `first` to `last`, which stand behind the last checkpoint, piece by piece.

    Raises:
        EntryForeign: one of them is missing, stands twice, or is none that the guard records.
    """
    if first > last:
        return
    await prepare_reader(connection)
    for start in range(first, last + 1, _PIECE):
        end = min(start + _PIECE - 1, last)
        leaves = leaves_of(start, end, await read_rows(connection, shard, start, end, RECORDED_KINDS))
        await _check(connection, shard, leaves)
        yield leaves.hashes


async def _check(connection: AnyConnection, shard: int, leaves: Leaves) -> None:
    last = leaves.first + len(leaves.hashes) - 1
    foreign: dict[int, str] = {}
    for kind, table in KINDS.items():
        if kind not in RECORDED_KINDS:
            query = f"SELECT min(seq) FROM apc_log.{table} WHERE shard = $1 AND seq BETWEEN $2 AND $3"
            seq = await connection.fetchval(query, shard, leaves.first, last)
            if seq is not None:
                foreign[seq] = table
    missing = next((seq for seq, leaf in zip(count(leaves.first), leaves.hashes, strict=False) if not leaf), None)
    if foreign and (missing is None or min(foreign) <= missing):
        seq = min(foreign)
        raise EntryForeign(shard, seq, f"is a row of {foreign[seq]} that came in no batch of a gate")
    if missing is not None:
        raise EntryForeign(shard, missing, "is missing, or of no known kind and version")


# Appends the leaves of a transaction to the tree of its shard and signs the new head, in that same transaction.

_EDGE = "SELECT tree_size, hashes FROM apc_log.log_edges WHERE shard = $1"
_LAST_NOTE = "SELECT note FROM apc_log.log_checkpoints WHERE shard = $1 ORDER BY tree_size DESC LIMIT 1"
_STORE = """
WITH tiles AS (
    INSERT INTO apc_log.log_tiles (shard, level, index, hashes)
    SELECT $1, level, index, hashes FROM unnest($6::integer[], $7::bigint[], $8::bytea[]) AS tile(level, index, hashes)
), edge AS (
    INSERT INTO apc_log.log_edges (shard, tree_size, hashes) VALUES ($1, $2, $3)
    ON CONFLICT (shard) DO UPDATE SET tree_size = excluded.tree_size, hashes = excluded.hashes
)
INSERT INTO apc_log.log_checkpoints (shard, tree_size, root_hash, note) VALUES ($1, $2, $4, $5)
"""
"""One statement: each costs the transaction a way to the server and back."""
Stored = tuple[object, ...]
"""The arguments of _STORE."""


class TreeSigner:
    """The tree of one shard and who signs its heads.

    The tree is kept in memory between transactions; `forget` it whenever one did not surely commit, or the connection
    is another one.
    """

    def __init__(self, shard: int, signer: Signer) -> None:
        self._shard = shard
        self._signer = signer
        self._tree: Tree | None = None

    def forget(self) -> None:
        """Load the tree from the database at its next use."""
        self._tree = None

    async def attest(self, connection: AnyConnection, first_seq: int, leaves: Sequence[bytes]) -> Tree:
        """Append these leaves as entries `first_seq` and on, store tiles and edge, and sign the head.

        Call inside the transaction that holds the shard's head and stores the rows. Nothing is signed when there is
        nothing new. Entries in front of them that the tree does not have yet are taken from their rows, if the guard
        recorded them. Give the returned tree to `confirm` once the transaction is committed.

        Raises:
            TreeBroken: the stored tree is not the one that was signed last, or is ahead of the log.
            EntryForeign: an entry in front of them is missing, or came from nobody who may add to the log.
        """
        (tree,) = await attest_each(connection, [(self, first_seq, leaves)])
        return tree

    async def extend(
        self, connection: AnyConnection, first_seq: int, leaves: Sequence[bytes]
    ) -> tuple[Tree, Stored | None]:
        """Return the tree with these leaves, and what is to be stored of it: nothing when nothing is new.

        Raises what `attest` raises.
        """
        tree = self._tree
        if tree is None or tree.size != first_seq - 1:
            tree = await self._load(connection)
        before = tree.size
        if tree.size > first_seq - 1:
            raise TreeBroken(self._shard, f"the tree has {tree.size} entries and the log {first_seq - 1}")
        tiles: list[Tile] = []
        async for recorded in read_recorded(connection, self._shard, tree.size + 1, first_seq - 1):
            tree, more = tree.extend(recorded)
            tiles += more
        extended, more = tree.extend(leaves)
        return extended, self._signed(extended, tiles + more) if extended.size > before else None

    def confirm(self, tree: Tree) -> None:
        """Take note that the transaction of `attest` is committed."""
        self._tree = tree

    async def _load(self, connection: AnyConnection) -> Tree:
        """Return the stored tree, once the last checkpoint vouches for it: an edge alone can be written by anybody who
        may write the log."""
        tree = await load_tree(connection, self._shard)
        note = await connection.fetchval(_LAST_NOTE, self._shard)
        if note is None:
            if tree.size:
                raise TreeBroken(self._shard, f"the tree has {tree.size} entries and no checkpoint was signed")
            return tree
        try:
            signed = check_note(parse_note(note), self._signer.trusted(self._shard))
        except CheckFailed as error:
            hint = "after a change of key or APC_LOG_NAME, APC_LOG_PREVIOUS_KEYS names the public key before it"
            raise TreeBroken(self._shard, f"the last checkpoint cannot be trusted: {error} ({hint})") from error
        if (signed.size, signed.root) != (tree.size, tree.root):
            raise TreeBroken(
                self._shard, f"the stored tree of {tree.size} entries is not the signed one of {signed.size}"
            )
        return tree

    def _signed(self, tree: Tree, tiles: Sequence[Tile]) -> Stored:
        root = tree.root
        note = self._signer.sign(self._shard, tree.size, root)
        crash_point("persister.after_signing")
        columns = ([tile.level for tile in tiles], [tile.index for tile in tiles], [tile.hashes for tile in tiles])
        return self._shard, tree.size, list(tree.edge), root, note, *columns


async def attest_each(
    connection: AnyConnection, shards: Sequence[tuple[TreeSigner, int, Sequence[bytes]]]
) -> list[Tree]:
    """Do for several shards, each with its `first_seq` and leaves, what `attest` does for one; returns the trees."""
    extended = [await signer.extend(connection, first_seq, leaves) for signer, first_seq, leaves in shards]
    if added := [stored for _, stored in extended if stored is not None]:
        await connection.executemany(_STORE, added)
    return [tree for tree, _ in extended]


async def load_tree(connection: AnyConnection, shard: int) -> Tree:
    """Return the tree of a shard by its stored edge; the empty one when it has none.

    Raises:
        TreeBroken: no writer has stored this edge.
    """
    row = await connection.fetchrow(_EDGE, shard)
    if row is None:
        return Tree()
    tree = Tree(row["tree_size"] or 0, tuple(row["hashes"] or ()))
    if not tree.is_well_formed:
        raise TreeBroken(
            shard, f"the stored tree of {tree.size} entries is not the signed one: its edge is that of no tree"
        )
    return tree


# Reads the tiles of a shard's tree: those that are full from log_tiles, the others from the edge.

_TILE = "SELECT hashes FROM apc_log.log_tiles WHERE shard = $1 AND level = $2 AND index = $3"


class Tiles:
    """The tiles of the tree as it was at one moment; each is read once."""

    def __init__(self, connection: AnyConnection, shard: int, tree: Tree) -> None:
        self._connection = connection
        self.shard = shard
        self.tree = tree
        self.roots: dict[tuple[int, int], bytes] = {}
        """(low, high) -> root over leaves low to high - 1: neighbours share most of their proofs."""
        self.archived: Callable[[int, int], Awaitable[bytes]] | None = None
        """Gives tiles of leaves that were released, by shard and index."""
        self._read: dict[tuple[int, int], bytes] = {}

    @classmethod
    async def open(cls, connection: AnyConnection, shard: int) -> "Tiles":
        """Return the tiles of the tree as it is now."""
        return cls(connection, shard, await load_tree(connection, shard))

    async def hashes(self, level: int, index: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile. Raises TreeBroken when they are not there."""
        tile = self._read.get((level, index))
        if tile is None:
            tile = self._read[level, index] = await self._find(level, index)
        if len(tile) < width * HASH_SIZE:
            raise TreeBroken(self.shard, f"tile {level}/{index} is missing")
        return tile[: width * HASH_SIZE]

    async def tree_at(self, size: int) -> Tree:
        """Return the tree as it was at an earlier size. Raises TreeBroken."""
        edge = []
        for level in range(len(self.tree.edge)):
            complete = size >> 8 * level
            edge.append(await self.hashes(level, complete // TILE_WIDTH, complete % TILE_WIDTH))
        return Tree(size, tuple(edge))

    async def _find(self, level: int, index: int) -> bytes:
        if level < len(self.tree.edge) and (self.tree.size >> 8 * level) // TILE_WIDTH == index:
            return self.tree.edge[level]
        tile: bytes | None = await self._connection.fetchval(_TILE, self.shard, level, index)
        if tile is None and level == 0 and self.archived is not None:
            return await self.archived(self.shard, index)
        return tile or b""


# Makes proofs out of the tiles of a shard's tree (RFC 6962 section 2.1).

_MOST_ROOTS = 100_000


async def inclusion_path(tiles: Tiles, index: int, size: int) -> list[bytes]:
    """Return the audit path of leaf `index` (from 0) in the tree of `size` leaves. Raises TreeBroken."""
    path: list[bytes] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            path.append(await _root(tiles, middle, high))
            high = middle
        else:
            path.append(await _root(tiles, low, middle))
            low = middle
    return path[::-1]


async def consistency_path(tiles: Tiles, old: int, new: int) -> list[bytes]:
    """Return the proof that the tree of `new` leaves extends that of `old`, 0 < old <= new. Raises TreeBroken."""
    path: list[bytes] = []
    low, high, is_whole = 0, new, True
    while old < high:
        middle = low + _split(high - low)
        if old <= middle:
            path.append(await _root(tiles, middle, high))
            high = middle
        else:
            path.append(await _root(tiles, low, middle))
            low, is_whole = middle, False
    if not is_whole:  # else it is the old root, which the reader has
        path.append(await _root(tiles, low, high))
    return path[::-1]


def _split(width: int) -> int:
    """Return the largest power of two below the width."""
    return 1 << (width - 1).bit_length() - 1


async def _root(tiles: Tiles, low: int, high: int) -> bytes:
    root = tiles.roots.get((low, high))
    if root is None:
        if len(tiles.roots) > _MOST_ROOTS:
            tiles.roots.clear()
        root = tiles.roots[low, high] = await _fold(tiles, low, high)
    return root


async def _fold(tiles: Tiles, low: int, high: int) -> bytes:
    """Return the root over leaves `low` to `high` - 1; `low` is where a subtree of the tree of `high` leaves begins."""
    carried: list[bytes] = []
    level = 0
    while True:
        first, last = low >> 8 * level, high >> 8 * level  # of the complete hashes of this level
        if last - first < TILE_WIDTH or first % TILE_WIDTH:
            break
        carried = await _partial(tiles, level, last // TILE_WIDTH, last % TILE_WIDTH, carried)
        level += 1
    row: list[bytes] = []
    while first < last:
        index, start = divmod(first, TILE_WIDTH)
        stop = min(TILE_WIDTH, start + last - first)
        row += split_hashes(await tiles.hashes(level, index, stop))[start:]
        first += stop - start
    return fold(row + carried)


async def _partial(tiles: Tiles, level: int, index: int, width: int, carried: list[bytes]) -> list[bytes]:
    """Return the root over a level's last, incomplete tile and what was carried from below.

    Nothing when there is none.
    """
    row = split_hashes(await tiles.hashes(level, index, width)) if width else []
    row += carried
    return [fold(row)] if row else []

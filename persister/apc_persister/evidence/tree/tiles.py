"""Reads the tiles of a shard's tree: those that are full from log_tiles, the others from the edge."""

from apc_log.connection import AnyConnection
from apc_persister.errors import TreeBroken
from apc_persister.evidence.tree.merkle import HASH_SIZE, TILE_WIDTH, Tree
from apc_persister.evidence.tree.tree_signer import load_tree

_TILE = "SELECT hashes FROM apc_log.log_tiles WHERE shard = $1 AND level = $2 AND index = $3"


class Tiles:
    """The tiles of the tree as it was at one moment; each is read once."""

    def __init__(self, connection: AnyConnection, shard: int, tree: Tree) -> None:
        self._connection = connection
        self.shard = shard
        self.tree = tree
        self.roots: dict[tuple[int, int], bytes] = {}
        """(low, high) -> root over leaves low to high - 1: neighbours share most of their proofs."""
        self._read: dict[tuple[int, int], bytes] = {}

    @classmethod
    async def open(cls, connection: AnyConnection, shard: int) -> "Tiles":
        """Return the tiles of the tree as it is now."""
        return cls(connection, shard, await load_tree(connection, shard))

    async def hashes(self, level: int, index: int, width: int) -> bytes:
        """Return the first `width` hashes of a tile. Raises TreeBroken when they are not there."""
        found = self._read.get((level, index))
        if found is None:
            found = self._read[level, index] = await self._find(level, index)
        if len(found) < width * HASH_SIZE:
            raise TreeBroken(self.shard, f"tile {level}/{index} is missing")
        return found[: width * HASH_SIZE]

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
        found: bytes | None = await self._connection.fetchval(_TILE, self.shard, level, index)
        return found or b""

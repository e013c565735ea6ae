"""Appends the leaves of a transaction to the tree of its shard and signs the new head, in that same transaction."""

from collections.abc import Sequence

from apc_bus.crash_points import crash_point
from apc_persister.connection import AnyConnection
from apc_persister.errors import TreeBroken
from apc_persister.evidence.checkpoint import Signer
from apc_persister.evidence.merkle import Tile, Tree
from apc_persister.evidence.reading import prepare_reader, read_leaves

_CHUNK = 50_000
_EDGE = "SELECT tree_size, hashes FROM apc_log.log_edges WHERE shard = $1"
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


class Notary:
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
        nothing new. Entries in front of them that the tree does not have yet (an old log, maintenance by SQL) are
        taken from their rows. Give the returned tree to `confirm` once the transaction is committed.

        Raises:
            TreeBroken: an entry in front of them is missing, or the tree is ahead of the log.
        """
        tree = self._tree
        if tree is None or tree.size != first_seq - 1:
            tree = await load_tree(connection, self._shard)
        before = tree.size
        tiles: list[Tile] = []
        while tree.size < first_seq - 1:
            last = min(tree.size + _CHUNK, first_seq - 1)
            tree, more = tree.extend(await self._missed(connection, tree.size + 1, last))
            tiles += more
        if tree.size > first_seq - 1:
            raise TreeBroken(self._shard, f"the tree has {tree.size} entries and the log {first_seq - 1}")
        extended, more = tree.extend(leaves)
        if extended.size > before:
            await self._store(connection, extended, tiles + more)
        return extended

    def confirm(self, tree: Tree) -> None:
        """The transaction of `attest` is committed."""
        self._tree = tree

    async def _missed(self, connection: AnyConnection, first: int, last: int) -> list[bytes]:
        await prepare_reader(connection)
        leaves = await read_leaves(connection, self._shard, first, last)
        if not all(leaves.hashes) or leaves.doubled:
            bad = leaves.doubled[0] if leaves.doubled else first + leaves.hashes.index(b"")
            raise TreeBroken(self._shard, f"entry {bad} is missing, stands twice or cannot be read")
        return leaves.hashes

    async def _store(self, connection: AnyConnection, tree: Tree, tiles: Sequence[Tile]) -> None:
        root = tree.root
        note = self._signer.sign(self._shard, tree.size, root)
        crash_point("persister.after_signing")
        columns = ([tile.level for tile in tiles], [tile.index for tile in tiles], [tile.hashes for tile in tiles])
        await connection.execute(_STORE, self._shard, tree.size, list(tree.edge), root, note, *columns)


async def load_tree(connection: AnyConnection, shard: int) -> Tree:
    """The tree of a shard by its stored edge; the empty one when it has none."""
    row = await connection.fetchrow(_EDGE, shard)
    return Tree() if row is None else Tree(row["tree_size"], tuple(row["hashes"]))

"""Appends the leaves of a transaction to the tree of its shard and signs the new head, in that same transaction."""

from collections.abc import Sequence

from apc_bus.crash_points import crash_point
from apc_log.connection import AnyConnection
from apc_log.offline_verifier import CheckFailed, parse_note
from apc_persister.errors import TreeBroken
from apc_persister.evidence.tree.checkpoint import Signer
from apc_persister.evidence.tree.merkle import Tile, Tree
from apc_persister.evidence.verification.chunks import check_note
from apc_persister.evidence.verification.unattested import read_recorded

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
        if extended.size > before:
            await self._store(connection, extended, tiles + more)
        return extended

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

    async def _store(self, connection: AnyConnection, tree: Tree, tiles: Sequence[Tile]) -> None:
        root = tree.root
        note = self._signer.sign(self._shard, tree.size, root)
        crash_point("persister.after_signing")
        columns = ([tile.level for tile in tiles], [tile.index for tile in tiles], [tile.hashes for tile in tiles])
        await connection.execute(_STORE, self._shard, tree.size, list(tree.edge), root, note, *columns)


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

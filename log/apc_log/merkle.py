"""The Merkle tree of a shard (RFC 6962 section 2.1), cut into tiles of 256 hashes (C2SP tlog-tiles): pure.

Level 0 holds leaf hashes; a hash of level n + 1 is the root over one full tile of level n. The tree in memory is its
edge: of every level the tile that is not full yet. That is all an append needs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct

from apc_log.offline_verifier import node_hash

TILE_WIDTH = 256
HASH_SIZE = 32
EMPTY_ROOT = sha256(b"").digest()
_PAIRS = Struct(f"{2 * HASH_SIZE}s")


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """A full tile: 256 hashes one after the other."""

    level: int
    index: int
    hashes: bytes
    root: bytes
    """The root over them: a hash of the level above."""


def fold(hashes: Sequence[bytes]) -> bytes:
    """Return the root over these hashes, at least one: MTH of RFC 6962, where a lonely right one goes up as it is."""
    row = list(hashes)
    while len(row) > 1:
        pairs = [node_hash(row[at], row[at + 1]) for at in range(0, len(row) - 1, 2)]
        row = pairs + row[-1:] if len(row) & 1 else pairs
    return row[0]


def fold_bytes(hashes: bytes) -> bytes:
    """Return the root over these hashes, one after the other, at least one; as `fold`, and faster."""
    width = 2 * HASH_SIZE
    while len(hashes) > HASH_SIZE:
        even = len(hashes) // width * width
        pairs = [sha256(b"\x01" + pair).digest() for (pair,) in _PAIRS.iter_unpack(memoryview(hashes)[:even])]
        hashes = b"".join((*pairs, hashes[even:]))
    return hashes


def widths_between(low: int, high: int) -> list[int]:
    """Return the widths of the subtrees that lead a tree from size `low` to `high`, in the order of their leaves."""
    widths: list[int] = []
    while low < high:
        width = 1 << (high - low).bit_length() - 1
        widths.append(min(width, low & -low) if low else width)
        low += widths[-1]
    return widths


def split_hashes(hashes: bytes) -> list[bytes]:
    """Return the hashes of 32 bytes that a tile is made of."""
    return [hashes[at : at + HASH_SIZE] for at in range(0, len(hashes), HASH_SIZE)]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree by its size and its edge; the empty one by default."""

    size: int = 0
    edge: tuple[bytes, ...] = ()
    """edge[level] = the hashes of the level's tile that is not full, fewer than 256."""

    @property
    def is_well_formed(self) -> bool:
        """Whether the edge has the levels and widths of a tree of this size."""
        if self.size < 0 or len(self.edge) != (self.size.bit_length() + 7) // 8:
            return False
        widths = ((self.size >> 8 * level) % TILE_WIDTH for level in range(len(self.edge)))
        return all(
            isinstance(hashes, bytes) and len(hashes) == width * HASH_SIZE
            for hashes, width in zip(self.edge, widths, strict=True)
        )

    def extend(self, leaves: Iterable[bytes], roots: Sequence[bytes] = ()) -> tuple["Tree", list[Tile]]:
        """Return the tree with these leaf hashes appended, and the tiles that became full.

        `roots`, if known, are those over each tile of level 0 that becomes full.
        """
        added = list(leaves)
        size = self.size + len(added)
        tiles: list[Tile] = []
        edge: list[bytes] = []
        level = 0
        while added or level < len(self.edge):
            before = self.edge[level] if level < len(self.edge) else b""
            hashes = before + b"".join(added)
            index = (self.size >> 8 * level) // TILE_WIDTH
            full = len(hashes) // (TILE_WIDTH * HASH_SIZE)
            width = TILE_WIDTH * HASH_SIZE
            parts = [hashes[n * width : (n + 1) * width] for n in range(full)]
            known = roots if level == 0 and roots else [fold_bytes(part) for part in parts]
            new = [Tile(level, index + n, part, root) for n, (part, root) in enumerate(zip(parts, known, strict=True))]
            edge.append(hashes[full * width :])
            added = [tile.root for tile in new]
            tiles += new
            level += 1
        return Tree(size, tuple(edge)), tiles

    @property
    def root(self) -> bytes:
        """The root hash as RFC 6962 defines it; that of the empty tree is EMPTY_ROOT."""
        carried = b""
        for hashes in self.edge:
            carried = fold_bytes(hashes + carried)
        return carried or EMPTY_ROOT


@dataclass(slots=True)
class Frontier:
    """A tree that takes leaves one by one and knows its root at every size: what `verify` counts up."""

    size: int = 0
    stack: list[bytes] = field(default_factory=list)
    """Roots of the complete subtrees, the largest first; one for every bit that is set in size."""

    def append(self, leaf: bytes) -> None:
        """Add the next leaf."""
        carry, stack = self.size, self.stack
        while carry & 1:
            leaf = node_hash(stack.pop(), leaf)
            carry >>= 1
        stack.append(leaf)
        self.size += 1

    def append_tile(self, root: bytes) -> None:
        """Add the next 256 leaves by the root over them; the size must be a multiple of 256."""
        self.append_subtree(root, TILE_WIDTH)

    def append_subtree(self, root: bytes, width: int) -> None:
        """Add the next `width` leaves by the root over them: a power of two, of which the size is a multiple."""
        carry, stack = self.size // width, self.stack
        while carry & 1:
            root = node_hash(stack.pop(), root)
            carry >>= 1
        stack.append(root)
        self.size += width

    @property
    def root(self) -> bytes:
        """The root hash at this size."""
        if not self.stack:
            return EMPTY_ROOT
        root = self.stack[-1]
        for left in reversed(self.stack[:-1]):
            root = node_hash(left, root)
        return root

    @classmethod
    def of(cls, tree: Tree) -> "Frontier":
        """Return the frontier from which the tree grows on: one hash for each full subtree of its edge."""
        stack: list[bytes] = []
        for hashes in reversed(tree.edge):
            row, at = split_hashes(hashes), 0
            while at < len(row):
                width = 1 << (len(row) - at).bit_length() - 1
                stack.append(fold(row[at : at + width]))
                at += width
        return cls(tree.size, stack)

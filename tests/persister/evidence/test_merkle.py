"""The tree against the published vectors of RFC 6962 implementations, and against its recursive definition."""

from collections.abc import Sequence
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_persister.check import leaf_hash, node_hash
from apc_persister.evidence.merkle import EMPTY_ROOT, Frontier, Tree, fold

# The eight leaves and their roots that every implementation of Certificate Transparency is tested with.
LEAVES = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)


def definition(leaves: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962 section 2.1, word for word, over leaf hashes."""
    if not leaves:
        return sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return node_hash(definition(leaves[:k]), definition(leaves[k:]))


def some_leaves(count: int) -> list[bytes]:
    return [leaf_hash(number.to_bytes(4)) for number in range(count)]


def test_published_roots() -> None:
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" == Tree().root.hex()
    for size, root in enumerate(ROOTS, 1):
        leaves = [leaf_hash(leaf) for leaf in LEAVES[:size]]
        tree, tiles = Tree().extend(leaves)
        assert tree.root.hex() == definition(leaves).hex() == fold(leaves).hex() == root
        assert tiles == []


@given(sizes=st.lists(st.integers(0, 700), max_size=5))
def test_growing_in_steps_is_growing_at_once(sizes: list[int]) -> None:
    leaves = some_leaves(sum(sizes))
    tree, frontier, tiles = Tree(), Frontier(), []
    for size in sizes:
        added = leaves[tree.size : tree.size + size]
        tree, more = tree.extend(added)
        tiles += more
        for leaf in added:
            frontier.append(leaf)
        assert tree.root == frontier.root == definition(leaves[: tree.size])
        assert Frontier.of(tree) == frontier
    at_once, all_tiles = Tree().extend(leaves)
    assert at_once.root == tree.root and at_once.size == tree.size == len(leaves)
    assert sorted(tiles) == sorted(all_tiles)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, 70_000])
def test_a_tile_of_level_one(size: int) -> None:
    leaves = some_leaves(size)
    tree, tiles = Tree().extend(leaves)
    assert tree.root == definition(leaves)
    full = {(tile.level, tile.index): tile.hashes for tile in tiles}
    assert len(full) == size // 256 + size // 65_536
    assert full[0, 3] == b"".join(leaves[768:1024])
    if size >= 65_536:
        assert full[1, 0][:32] == definition(leaves[:256])
    assert Frontier.of(tree).root == tree.root

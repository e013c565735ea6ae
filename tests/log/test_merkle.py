"""The tree against the published vectors of RFC 6962 implementations, and against its recursive definition."""

from collections.abc import Coroutine, Sequence
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_log.merkle import EMPTY_ROOT, Frontier, Tree, fold, fold_bytes, widths_between
from apc_log.offline_verifier import CheckFailed, check_consistency, leaf_hash, node_hash, root_by_inclusion
from apc_persister.evidence.tree import Tiles, consistency_path, inclusion_path

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


class TilesInMemory(Tiles):
    """The tiles of a tree without a database."""

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self.tree, full = Tree().extend(leaves)
        self.roots = {}
        self._full = {(tile.level, tile.index): tile.hashes for tile in full}

    async def hashes(self, level: int, index: int, width: int) -> bytes:
        edge = self.tree.edge[level] if index == (self.tree.size >> 8 * level) // 256 else b""
        found = self._full.get((level, index), edge)
        assert len(found) >= 32 * width
        return found[: 32 * width]


MANY = some_leaves(66_500)
TILES = TilesInMemory(MANY)
SIZES = st.integers(1, 700) | st.integers(65_000, 66_500)


def made_by(coroutine: Coroutine[None, None, list[bytes]]) -> list[bytes]:
    """Return what a coroutine returns that waits for nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    found: list[bytes] = ended.value.value
    return found


def path_by_definition(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 6962 section 2.1.1, word for word."""
    if len(leaves) == 1:
        return []
    k = 1 << (len(leaves) - 1).bit_length() - 1
    if index < k:
        return [*path_by_definition(index, leaves[:k]), definition(leaves[k:])]
    return [*path_by_definition(index - k, leaves[k:]), definition(leaves[:k])]


def proof_by_definition(old: int, leaves: Sequence[bytes], is_whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962 section 2.1.2, word for word."""
    if old == len(leaves):
        return [] if is_whole else [definition(leaves)]
    k = 1 << (len(leaves) - 1).bit_length() - 1
    if old <= k:
        return [*proof_by_definition(old, leaves[:k], is_whole), definition(leaves[k:])]
    return [*proof_by_definition(old - k, leaves[k:], False), definition(leaves[:k])]


@given(size=st.integers(1, 700), place=st.floats(0, 1, exclude_max=True))
def test_proofs_are_those_of_the_definition(size: int, place: float) -> None:
    index = int(place * size)
    leaves = MANY[:size]
    assert made_by(inclusion_path(TILES, index, size)) == path_by_definition(index, leaves)
    assert made_by(consistency_path(TILES, index + 1, size)) == proof_by_definition(index + 1, leaves)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(size=SIZES, place=st.floats(0, 1, exclude_max=True), flip=st.integers(0, 255))
def test_proofs_hold_and_altered_ones_do_not(size: int, place: float, flip: int) -> None:
    index = int(place * size)
    new = (size, Tree().extend(MANY[:size])[0].root)
    old = (index + 1, Tree().extend(MANY[: index + 1])[0].root)
    path = made_by(inclusion_path(TILES, index, size))
    assert root_by_inclusion(index, size, MANY[index], path) == new[1]
    proof = made_by(consistency_path(TILES, old[0], size))
    check_consistency(old, new, proof)
    for other in (index - 1, index + 1):
        if 0 <= other < size:
            assert _root_or_none(other, size, MANY[index], path) != new[1]
    for altered in _altered(path, flip):
        assert _root_or_none(index, size, MANY[index], altered) != new[1]
    for altered in _altered(proof, flip):
        with pytest.raises(CheckFailed):
            check_consistency(old, new, altered)


def _root_or_none(index: int, size: int, leaf: bytes, path: Sequence[bytes]) -> bytes | None:
    try:
        return root_by_inclusion(index, size, leaf, path)
    except CheckFailed:
        return None


def _altered(path: Sequence[bytes], flip: int) -> list[list[bytes]]:
    bit = (1 << flip).to_bytes(32)
    altered = [[*path, bit]]
    for at, step in enumerate(path):
        changed = bytes(a ^ b for a, b in zip(step, bit, strict=True))
        altered += [[*path[:at], changed, *path[at + 1 :]], [*path[:at], *path[at + 1 :]]]
        if at and path[at] != path[at - 1]:
            altered.append([*path[: at - 1], path[at], path[at - 1], *path[at + 1 :]])
    return altered


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
    by_tiles = Frontier()
    for tile in sorted(tile for tile in tiles if tile.level == 0):
        by_tiles.append_tile(tile.root)
    for leaf in leaves[by_tiles.size :]:
        by_tiles.append(leaf)
    assert by_tiles == Frontier.of(tree)


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=70))
def test_hashes_in_a_row_fold_as_a_list_of_them(leaves: list[bytes]) -> None:
    assert fold_bytes(b"".join(leaves)) == fold(leaves) == definition(leaves)


@given(st.integers(0, 200), st.integers(0, 200))
def test_subtrees_lead_from_one_size_to_another(one: int, other: int) -> None:
    low, high = sorted((one, other))
    leaves = [number.to_bytes(32, "big") for number in range(high)]
    frontier, at = Frontier(), low
    for leaf in leaves[:low]:
        frontier.append(leaf)
    for width in widths_between(low, high):
        frontier.append_subtree(fold(leaves[at : at + width]), width)
        at += width
    assert (at, frontier.size, frontier.root) == (high, high, definition(leaves))

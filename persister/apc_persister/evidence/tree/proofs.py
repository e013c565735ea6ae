"""Makes proofs out of the tiles of a shard's tree (RFC 6962 section 2.1)."""

from apc_persister.evidence.tree.merkle import TILE_WIDTH, fold, split_hashes
from apc_persister.evidence.tree.tiles import Tiles

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
    found = tiles.roots.get((low, high))
    if found is None:
        if len(tiles.roots) > _MOST_ROOTS:
            tiles.roots.clear()
        found = tiles.roots[low, high] = await _fold(tiles, low, high)
    return found


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

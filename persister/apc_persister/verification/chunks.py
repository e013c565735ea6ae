"""A log piece by piece, for `verify`: what the rows of a run of entries come to, worked out without the entries before.

Reading and hashing is all the work there is, and no piece needs another: on a long log it is shared out to processes.
"""

import asyncio
import signal
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import asyncpg

from apc_bus.database import connect
from apc_log.heads import AnyConnection
from apc_log.merkle import TILE_WIDTH, fold
from apc_log.offline_verifier import CheckFailed, Checkpoint, PublicKey, SignedNote, parse_note
from apc_persister.evidence.rows import Leaves, leaves_of, prepare_reader, read_rows

Keys = tuple[PublicKey, ...]
"""Anyone who may have signed a checkpoint: the log's key, and those that it had before."""
CHUNK = 32 * TILE_WIDTH
"""Entries of a piece."""

_CHECKPOINTS = """
SELECT tree_size, root_hash, note FROM apc_log.log_checkpoints
WHERE shard = $1 AND tree_size > $2 AND tree_size <= $3 ORDER BY tree_size
"""
_TILES = """
SELECT tile.level, tile.index, tile.hashes FROM generate_series(0, 6) AS above(level)
JOIN apc_log.log_tiles AS tile
  ON tile.shard = $1 AND tile.level = above.level
 AND tile.index BETWEEN ($2::bigint - 1) >> 8 * (above.level + 1) AND ($3::bigint - 1) >> 8 * (above.level + 1)
"""


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A row of log_checkpoints. `fault` is what is wrong with its note; None = signed, and as the row."""

    size: int
    signed: bytes | None
    """The root by its note; None where no signature holds, or the note is of another size."""
    fault: str | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """What the database says of a run of entries, which begins where a tile begins."""

    leaves: Leaves
    roots: Sequence[bytes]
    """The root over each 256 leaves, as far as there are so many."""
    tiles: Mapping[tuple[int, int], bytes]
    """(level, index) -> hashes, as stored."""
    checkpoints: Sequence[StoredCheckpoint]
    """Those of sizes within it, the smallest first."""


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of entries `first` to `last`, and by whose key its checkpoints may be signed."""

    first: int
    last: int
    keys: Keys
    rows: Sequence[asyncpg.Record]
    tiles: Mapping[tuple[int, int], bytes]
    checkpoints: Sequence[asyncpg.Record]

    def work_out(self) -> Chunk:
        """Return the leaves, the roots over them, and the signatures: what takes the time."""
        leaves = leaves_of(self.first, self.last, self.rows)
        whole = len(leaves.hashes) // TILE_WIDTH * TILE_WIDTH
        roots = [fold(leaves.hashes[at : at + TILE_WIDTH]) for at in range(0, whole, TILE_WIDTH)]
        return Chunk(leaves, roots, self.tiles, [_weigh(row, self.keys) for row in self.checkpoints])


def _weigh(row: asyncpg.Record, keys: Keys) -> StoredCheckpoint:
    size: int = row["tree_size"]
    try:
        checkpoint = check_note(parse_note(row["note"] or ""), keys)
    except CheckFailed as error:
        return StoredCheckpoint(size, None, f"stored checkpoint of {size} entries: {error}")
    differing = "tree_size" if checkpoint.size != size else "root_hash"
    fault = f"column {differing} of the stored checkpoint of {size} entries is not what its note says"
    if checkpoint.size != size:
        return StoredCheckpoint(size, None, fault)
    is_right = checkpoint.root == row["root_hash"]
    return StoredCheckpoint(size, checkpoint.root, None if is_right else fault)


def check_note(note: SignedNote, keys: Keys) -> Checkpoint:
    """Return the checkpoint, once a signature by one of the keys holds.

    Raises CheckFailed: what is wrong by the first key.
    """
    failed: CheckFailed | None = None
    for key in keys:
        try:
            return note.check(key)
        except CheckFailed as error:
            failed = failed or error
    raise failed or CheckFailed("no key to check it with")


async def _read(connection: AnyConnection, shard: int, keys: Keys, first: int, last: int) -> _Read:
    """Read a chunk over a connection that `prepare_reader` has set up."""
    tiles = await connection.fetch(_TILES, shard, first, last)
    return _Read(
        first,
        last,
        keys,
        await read_rows(connection, shard, first, last),
        {(row["level"], row["index"]): row["hashes"] for row in tiles},
        await connection.fetch(_CHECKPOINTS, shard, first - 1, last),
    )


def _pieces(first: int, size: int) -> Iterator[tuple[int, int]]:
    for start in range(first, size + 1, CHUNK):
        yield start, min(start + CHUNK - 1, size)


async def read_here(
    connection: AnyConnection, shard: int, keys: Keys, first: int, size: int
) -> AsyncGenerator[Chunk, None]:
    """Yield entries `first` to `size` in order; a thread computes a piece while the next rows arrive."""
    await prepare_reader(connection)
    arriving: asyncio.Task[_Read] | None = None
    with _quick_switches():
        try:
            for piece in [*_pieces(first, size), None]:
                read = await arriving if arriving is not None else None
                arriving = asyncio.create_task(_read(connection, shard, keys, *piece)) if piece is not None else None
                if read is not None:
                    yield await asyncio.to_thread(read.work_out)
        finally:
            if arriving is not None:
                arriving.cancel()
                await asyncio.wait({arriving})


@contextmanager
def _quick_switches() -> Iterator[None]:
    """Shorten the interpreter's switch interval while a thread hashes: the loop would wait 5 ms for each piece."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0005)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Helpers:
    """Processes that read and work out pieces, each over its own connection; made by `start_helpers`."""

    def __init__(self, pool: ProcessPoolExecutor, processes: int) -> None:
        self._pool = pool
        self._ahead = 2 * processes

    async def read(self, shard: int, keys: Keys, first: int, size: int) -> AsyncGenerator[Chunk, None]:
        """Yield entries `first` to `size` in order.

        Raises:
            OSError, asyncpg.PostgresError, asyncpg.InterfaceError: a process lost the database, or was killed.
        """
        loop = asyncio.get_running_loop()
        coming: deque[asyncio.Future[Chunk]] = deque()
        try:
            for piece in _pieces(first, size):
                coming.append(loop.run_in_executor(self._pool, _work, shard, keys, *piece))
                if len(coming) == self._ahead:
                    yield await coming.popleft()
            while coming:
                yield await coming.popleft()
        except BrokenProcessPool as error:
            raise ConnectionError("a process that helps to verify was killed") from error
        finally:
            for future in coming:
                future.cancel()


@asynccontextmanager
async def start_helpers(url: str, processes: int) -> AsyncIterator[Helpers]:
    """Start this many processes for the database at `url`; they end with the context."""
    # Not forked: this process has threads and a loop.
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(url,))
    try:
        yield Helpers(pool, processes)
    finally:
        await asyncio.to_thread(pool.shutdown, cancel_futures=True)


class _Helper:
    """The one of this process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection | None = None

    def work(self, shard: int, keys: Keys, first: int, last: int) -> Chunk:
        return self._loop.run_until_complete(self._read(shard, keys, first, last)).work_out()

    async def _read(self, shard: int, keys: Keys, first: int, last: int) -> _Read:
        if self._connection is None:  # here, so that a failure is that of a piece
            self._connection = await connect(self._url)
            await prepare_reader(self._connection)
        return await _read(self._connection, shard, keys, first, last)


_helper: _Helper | None = None


def _begin(url: str) -> None:
    global _helper
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the one who started us stops us
    _helper = _Helper(url)


def _work(shard: int, keys: Keys, first: int, last: int) -> Chunk:
    assert _helper is not None
    return _helper.work(shard, keys, first, last)

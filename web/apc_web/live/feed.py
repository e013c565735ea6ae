"""The feed of a server: one reader of the heads for all streams, 10 times a second while one is open."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg
import structlog

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY
from apc_contracts.contract.contract import Contract
from apc_log.queries.health import read_heads
from apc_log.queries.packet_pages import entries_of_shard
from apc_web.fold.entries import fold_entry
from apc_web.live.shared_events import WrittenEvents
from apc_web.live.stream_seats import StreamSeats
from apc_web.models.timeline import FoldEntry

Heads = dict[int, int]
"""Shard -> last seq."""
PERIOD_SECONDS = 0.1
_AWAY_SECONDS = 1.0
_SHARED = 512
"""Ranges of entries that are kept for the streams that read the same ones."""
_log = structlog.get_logger("apc_web")


class Feed:
    """Tells streams that the log grew, and reads each range of entries once for all of them.

    Args:
        pool: connections that may only read.
        contract: names the phase of a state.
    """

    def __init__(self, pool: asyncpg.Pool, contract: Contract) -> None:
        self._pool = pool
        self._contract = contract
        self._heads: Heads = {}
        self._streams = 0
        self._changed = asyncio.Event()
        self._is_away = False
        self._reader: asyncio.Task[None] | None = None
        self._ranges: dict[tuple[int, int, int], asyncio.Future[list[FoldEntry]]] = {}
        self.written = WrittenEvents()
        self.seats = StreamSeats()

    @property
    def heads(self) -> Heads:
        """Return the heads that were read last."""
        return dict(self._heads)

    @property
    def is_away(self) -> bool:
        """Return whether the database did not answer the last time."""
        return self._is_away

    @property
    def streams(self) -> int:
        """Return how many streams are open."""
        return self._streams

    async def look(self) -> None:
        """Read the heads unless a stream does. Raises the errors of the database, before an answer has begun."""
        if not self._streams:
            self._heads = await read_heads(self._pool)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Count a stream, and read the heads while one is open. Raises the errors of the first read."""
        await self.look()
        self._streams += 1
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self._streams -= 1

    async def until_changed(self, seen: Mapping[int, int], was_away: bool, patience: float) -> bool:
        """Wait until a shard's log is longer than `seen`, or the database goes or comes back; False after `patience` s.

        Each change has an event, and no lock is taken: a server that stops cancels its streams again and again.
        """
        try:
            async with asyncio.timeout(patience):
                while not self._is_longer(seen) and self._is_away == was_away:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def entries(self, shard: int, after: int, last: int) -> list[FoldEntry]:
        """Return the entries of a shard with after < seq <= last; streams that follow the end share one read."""
        key = (shard, after, last)
        found = self._ranges.get(key)
        if found is None:
            while len(self._ranges) >= _SHARED:
                self._ranges.pop(next(iter(self._ranges)))
            found = self._ranges[key] = asyncio.ensure_future(self._load(*key))
            found.add_done_callback(lambda done: self._forget_failed(key, done))
        with unasked_cancel_fails():
            return await asyncio.shield(found)

    def _is_longer(self, seen: Mapping[int, int]) -> bool:
        return any(last > seen.get(shard, 0) for shard, last in self._heads.items())

    def _forget_failed(self, key: tuple[int, int, int], done: asyncio.Future[list[FoldEntry]]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._ranges.pop(key, None)

    async def _load(self, shard: int, after: int, last: int) -> list[FoldEntry]:
        rows = await entries_of_shard(self._pool, shard, after=after, last=last)
        return [fold_entry(row, self._contract) for row in rows]

    async def _read(self) -> None:
        """Read the heads until no stream is open; go on when the database was away."""
        while self._streams:
            try:
                with unasked_cancel_fails():
                    heads = await read_heads(self._pool)
            except DATABASE_AWAY as error:
                _log.warning("feed_waits", reason=f"{type(error).__name__}: {error}")
                self._tell(self._heads, is_away=True)
                await asyncio.sleep(_AWAY_SECONDS)
                continue
            self._tell(heads, is_away=False)
            await asyncio.sleep(PERIOD_SECONDS)
        self._ranges.clear()
        self.written.clear()

    def _tell(self, heads: Heads, *, is_away: bool) -> None:
        if (heads, is_away) != (self._heads, self._is_away):
            self._heads, self._is_away = heads, is_away
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

"""The feed of a server: one reader of the heads for all streams, 10 times a second while one is open."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import asyncpg
import structlog

from apc_bus.database import DATABASE_AWAY
from apc_contracts.contract.contract import Contract
from apc_log.queries.pages.entries import entries_of_shard
from apc_log.queries.pages.shards import read_heads
from apc_web.fold.entries import fold_entry
from apc_web.live.shared_events import WrittenEvents
from apc_web.models.timeline import FoldEntry

Heads = dict[int, int]
"""Shard -> last seq."""
PERIOD_SECONDS = 0.1
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
        self._grown = asyncio.Condition()
        self._reader: asyncio.Task[None] | None = None
        self._ranges: dict[tuple[int, int, int], asyncio.Future[list[FoldEntry]]] = {}
        self.written = WrittenEvents()

    @property
    def heads(self) -> Heads:
        """Return the heads that were read last."""
        return dict(self._heads)

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

    async def until_grown(self, seen: Mapping[int, int], patience: float) -> bool:
        """Wait until a shard's log is longer than `seen`; return False after `patience` seconds."""
        async with self._grown:
            try:
                await asyncio.wait_for(self._grown.wait_for(lambda: self._is_longer(seen)), patience)
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
                heads = await read_heads(self._pool)
            except DATABASE_AWAY as error:
                _log.warning("feed_waits", reason=f"{type(error).__name__}: {error}")
                await asyncio.sleep(1.0)
                continue
            if heads != self._heads:
                async with self._grown:
                    self._heads = heads
                    self._grown.notify_all()
            await asyncio.sleep(PERIOD_SECONDS)
        self._ranges.clear()
        self.written.clear()

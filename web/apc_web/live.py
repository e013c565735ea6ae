"""The live feed of a server: one reader of the log for all streams, the events they send, and their number.

Events are written once: 100 streams would write the same text 100 times.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from apc_bus.concurrency import unasked_cancel_fails
from apc_contracts.contract.contract import Contract
from apc_log.heads import LogWatch
from apc_log.queries.packet_pages import entries_of_shard
from apc_web.access import LOCAL_USER
from apc_web.errors import ApiError
from apc_web.fold import fold_entry
from apc_web.models import FoldEntry

_KEPT = 64
"""Streams that follow the end of the log need the last ones."""


@dataclass(frozen=True, slots=True)
class EventKey:
    """What the text of an event depends on."""

    session_id: str | None
    is_viewer: bool
    """A viewer's events have fewer columns."""
    part: tuple[int, int, int]
    """Shard, and the entries after < seq <= last."""
    heads: tuple[tuple[int, int], ...]


class WrittenEvents:
    """Keeps the last events as they are sent."""

    def __init__(self) -> None:
        self._events: dict[EventKey, bytes] = {}

    def get(self, key: EventKey | None) -> bytes | None:
        """Return an event that was written before; None when there is none, and for the key None."""
        return None if key is None else self._events.get(key)

    def keep(self, key: EventKey | None, event: bytes) -> None:
        """Keep an event in place of the oldest one; the key None keeps nothing."""
        if key is None:
            return
        while len(self._events) >= _KEPT:
            self._events.pop(next(iter(self._events)))
        self._events[key] = event

    def clear(self) -> None:
        """Forget all."""
        self._events.clear()


# How many streams are open, of all people and of each: one person leaves room for the others.

MOST_STREAMS = 128
"""Streams of one server at the same time."""
MOST_OF_ONE = 32
"""Streams of one account; a browser opens one, whatever number of tabs it has."""


class StreamSeats:
    """Counts the open streams."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @contextmanager
    def taken(self, name: str) -> Iterator[None]:
        """Count a stream of a person while the context is open. Raises ApiError (429) when too many are open."""
        most = MOST_STREAMS if name == LOCAL_USER else MOST_OF_ONE
        if self._taken.total() >= MOST_STREAMS:
            raise ApiError(429, "TOO_MANY", f"{MOST_STREAMS} streams are open: close one")
        if self._taken[name] >= most:
            raise ApiError(429, "TOO_MANY", f"{most} streams of {name} are open: close one")
        self._taken[name] += 1
        try:
            yield
        finally:
            self._taken[name] -= 1
            if not self._taken[name]:
                del self._taken[name]


class SeatedStream(EventSourceResponse):
    """A stream that is counted from the moment its answer begins, so that none slips in between look and count.

    Args:
        seats: count it.
        name: whose stream it is.
        content: the events.
        options: as of EventSourceResponse.
    """

    def __init__(self, seats: StreamSeats, name: str, content: Any, **options: Any) -> None:
        super().__init__(content, **options)
        self._seats = seats
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events. Raises ApiError, before anything is sent, when too many streams are open."""
        with self._seats.taken(self._name):
            await super().__call__(scope, receive, send)


_SHARED = 512
"""Ranges of entries that are kept for the streams that read the same ones."""


class Feed(LogWatch):
    """Tells streams that the log grew, and reads each range of entries once for all of them.

    Args:
        pool: connections that may only read.
        contract: names the phase of a state.
    """

    def __init__(self, pool: asyncpg.Pool, contract: Contract) -> None:
        super().__init__(pool)
        self._contract = contract
        self._ranges: dict[tuple[int, int, int], asyncio.Future[list[FoldEntry]]] = {}
        self.written = WrittenEvents()
        self.seats = StreamSeats()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Follow the log as a stream. Raises the errors of the first read."""
        await self.look()
        try:
            with self.followed():
                yield
        finally:
            if not self.followers:
                self._ranges.clear()
                self.written.clear()

    async def entries(self, shard: int, after: int, last: int) -> list[FoldEntry]:
        """Return the entries of a shard with after < seq <= last; streams that follow the end share one read."""
        key = (shard, after, last)
        reading = self._ranges.get(key)
        if reading is None:
            while len(self._ranges) >= _SHARED:
                self._ranges.pop(next(iter(self._ranges)))
            reading = self._ranges[key] = asyncio.ensure_future(self._load(*key))
            reading.add_done_callback(lambda done: self._forget_failed(key, done))
        with unasked_cancel_fails():
            return await asyncio.shield(reading)

    def _forget_failed(self, key: tuple[int, int, int], done: asyncio.Future[list[FoldEntry]]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._ranges.pop(key, None)

    async def _load(self, shard: int, after: int, last: int) -> list[FoldEntry]:
        rows = await entries_of_shard(self._pool, shard, after=after, last=last)
        return [fold_entry(row, self._contract) for row in rows]

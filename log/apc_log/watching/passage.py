"""The part of the log between two reads of the heads."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

import asyncpg

from apc_log.heads import read_ends


@dataclass(frozen=True, slots=True)
class Passage:
    """The entries of each shard behind `after`, up to and including `until`."""

    until: Mapping[int, int]
    """shard -> its last seq, as `read_ends` returns it."""
    after: Mapping[int, int] = field(default_factory=dict)
    """shard -> the seq before its first; a shard that is missing begins at its first entry."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing between the two places."""
        return all(end <= self.after.get(shard, 0) for shard, end in self.until.items())

    @property
    def arguments(self) -> tuple[list[int], list[int], list[int]]:
        """Return shards, `after` and `until` as three lists, for unnest()."""
        shards = sorted(self.until)
        return shards, [self.after.get(shard, 0) for shard in shards], [self.until[shard] for shard in shards]

    def next(self, until: Mapping[int, int]) -> Self:
        """Return the passage that follows this one."""
        return type(self)(until, self.until)


async def passages(pool: asyncpg.Pool, *, poll: timedelta, back: int | None = None) -> AsyncGenerator[Passage]:
    """Yield the log as it is now, then each time what was added, without end; look at the heads every `poll`.

    The first one holds the last `back` entries of each shard; by default all.
    """
    ends = await read_ends(pool)
    passage = Passage(ends, {} if back is None else {shard: max(0, end - back) for shard, end in ends.items()})
    yield passage
    while True:
        await asyncio.sleep(poll.total_seconds())
        passage = passage.next(await read_ends(pool))
        if not passage.is_empty:
            yield passage

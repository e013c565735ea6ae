"""The databases of a log: `home`, those of APC_DATABASES, and which of them has each shard."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from apc_bus.database import DATABASE_AWAY, open_pool
from apc_bus.settings.database import HOME
from apc_log.errors import DatabaseUnknown

_PLACES = """
SELECT shard, database, moving_to FROM apc_log.shard_places WHERE database IS NOT NULL OR moving_to IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class DatabasePlace:
    """Where the log of a shard is."""

    database: str = HOME
    moving_to: str | None = None
    """The database that it is on its way to: then no orchestrator takes the shard."""


async def read_database_places(home: asyncpg.Pool) -> dict[int, DatabasePlace]:
    """Return the place of each shard that is not at home, or about to leave it."""
    return {row["shard"]: DatabasePlace(row["database"] or HOME, row["moving_to"]) for row in await home.fetch(_PLACES)}


class LogDatabases:
    """A pool of each database of the log. With home alone nothing is asked, and every shard is there.

    Where a shard is may change at any time: a database refuses a shard that it does not have, and who is refused asks
    again.
    """

    def __init__(self, home: asyncpg.Pool, others: Mapping[str, asyncpg.Pool] | None = None) -> None:
        """Take the pool of home, and those of the others by their names."""
        self.home = home
        self.pools: Mapping[str, asyncpg.Pool] = {HOME: home, **(others or {})}
        self._places: dict[int, DatabasePlace] | None = None

    @property
    def has_others(self) -> bool:
        """Whether there is a database beside home."""
        return len(self.pools) > 1

    @property
    def known_pools(self) -> Sequence[asyncpg.Pool]:
        """The pools of all databases, home first."""
        return tuple(self.pools.values())

    def place_of(self, shard: int) -> DatabasePlace:
        """Return where a shard was at the last look."""
        return (self._places or {}).get(shard, DatabasePlace())

    def shards_elsewhere(self, name: str, shards: int = 256) -> list[int]:
        """Return the shards that a database did not have at the last look: what it holds of them is out of date."""
        return [shard for shard in range(shards) if self.place_of(shard).database != name]

    async def look(self) -> None:
        """Read where the shards are. Raises OSError or asyncpg's errors when home is away."""
        if self.has_others:
            self._places = await read_database_places(self.home)

    async def find(self, shard: int) -> asyncpg.Pool:
        """Return the pool of the database that has a shard; while home is away, by the last look.

        Raises:
            DatabaseUnknown: APC_DATABASES does not name it.
            OSError, asyncpg.PostgresError: home is away, and was never looked into.
        """
        try:
            await self.look()
        except DATABASE_AWAY:
            if self._places is None:
                raise
        name = self.place_of(shard).database
        if name not in self.pools:
            raise DatabaseUnknown(shard, name)
        return self.pools[name]


@asynccontextmanager
async def open_databases(home: asyncpg.Pool, urls: Mapping[str, str], **options: Any) -> AsyncIterator[LogDatabases]:
    """Yield home and the databases of these URLs, whose pools connect when they are used: one may be away.

    Args:
        home: the pool of APC_DATABASE_URL.
        urls: name -> URL, as `DatabaseSettings.other_urls`.
        options: of `open_pool`.
    """
    async with AsyncExitStack() as stack:
        others = {}
        for name, url in urls.items():
            others[name] = await open_pool(url, min_size=0, **options)
            stack.push_async_callback(others[name].close)
        yield LogDatabases(home, others)

"""Where the log of each shard ends, who waits until it grows, which epochs were given, and where a session stands."""

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from uuid import UUID

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.telemetry import get_logger

AnyConnection = asyncpg.Connection | PoolConnectionProxy
"""A connection, or a pool's proxy of one."""


_HOLDS_LOG = "SELECT to_regclass('apc_log.agent_packets') IS NOT NULL"
_HEAD = "SELECT epoch, holder, batch_no, next_seq FROM apc_log.shards WHERE shard = $1"
_GIVEN = """
SELECT given.epoch, given.mark_epoch, given.mark_batch_no, head.epoch AS newest
FROM apc_log.shard_epochs AS given JOIN apc_log.shards AS head USING (shard)
WHERE given.shard = $1 AND given.holder = $2
"""
_EPOCHS = "SELECT shard, epoch FROM apc_log.shards ORDER BY shard"
_ENDS = "SELECT shard, next_seq - 1 AS last FROM apc_log.shards ORDER BY shard"
_TREE_SIZES = """
SELECT shard, coalesce(tree_size, 0) AS size FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
ORDER BY shard
"""


@dataclass(frozen=True, slots=True)
class ShardHead:
    """Where the log of a shard ends; epoch 0 before the first holder."""

    epoch: int = 0
    holder: UUID | None = None
    batch_no: int = 0
    next_seq: int = 1


@dataclass(frozen=True, slots=True)
class GivenEpoch:
    """The epoch that the persister gave to a holder, and the last batch of the holder before."""

    epoch: int
    mark_epoch: int
    mark_batch_no: int
    newest: int
    """The newest epoch of the shard: another one means that the given one is over."""


async def holds_log(pool: asyncpg.Pool) -> bool:
    """Return whether the database has the tables of the log."""
    return bool(await pool.fetchval(_HOLDS_LOG))


async def read_head(pool: asyncpg.Pool, shard: int) -> ShardHead:
    """Return where the log of a shard ends."""
    row = await pool.fetchrow(_HEAD, shard)
    return ShardHead() if row is None else ShardHead(**row)


async def read_given_epoch(pool: asyncpg.Pool, shard: int, holder: UUID) -> GivenEpoch | None:
    """Return the epoch that was given to a holder; None while there is none."""
    row = await pool.fetchrow(_GIVEN, shard, holder)
    return None if row is None else GivenEpoch(**row)


async def read_epochs(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the newest epoch of every shard that ever had a holder."""
    return {row["shard"]: row["epoch"] for row in await connection.fetch(_EPOCHS)}


async def read_ends(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return the seq of the last entry of every shard; 0 = the shard has none."""
    return {row["shard"]: row["last"] for row in await connection.fetch(_ENDS)}


async def read_tree_sizes(connection: asyncpg.Pool | AnyConnection) -> dict[int, int]:
    """Return how many entries of every shard stand in its Merkle tree."""
    return {row["shard"]: row["size"] for row in await connection.fetch(_TREE_SIZES)}


# Following the log: one small read for all who wait.

PERIOD_SECONDS: Final = 0.05
"""Between two looks at the ends while somebody follows the log."""
_AWAY_SECONDS = 1.0
"""Between two looks while the database does not answer."""
_log = get_logger("apc_log")


class LogWatch:
    """Tells all who follow the log that it has grown: one look at its ends for all of them, 20 times a second.

    Nobody looks while nobody follows.

    ```python
    async def wait_for_growth(watch: LogWatch) -> Mapping[int, int]:
        with watch.followed():
            await watch.until_changed(watch.ends)
        return watch.ends
    ```

    Args:
        pool: connections to the log's database, for reading.
    """

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool
        self._ends: dict[int, int] = {}
        self._is_away = False
        self._failure: Exception | None = None
        self._followers = 0
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def ends(self) -> dict[int, int]:
        """The last entry of each shard, as it was read last; what was read before a look at the log misses nothing."""
        return dict(self._ends)

    @property
    def is_away(self) -> bool:
        """Whether the database did not answer the last time."""
        return self._is_away

    @property
    def followers(self) -> int:
        """How many follow the log."""
        return self._followers

    async def look(self) -> None:
        """Read the ends unless a follower does. Raises the errors of the database."""
        if not self._followers:
            self._tell(await read_ends(self._pool), is_away=False)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Read the ends again and again while the context is open."""
        self._followers += 1
        if self._reader is None or self._reader.done():
            self._failure = None
            self._reader = asyncio.create_task(self._read())
        try:
            yield
        finally:
            self._followers -= 1

    async def until_changed(
        self, seen: Mapping[int, int], *, was_away: bool | None = None, patience: float | None = None
    ) -> bool:
        """Wait, as a follower, until the log ends elsewhere than `seen`; return False after `patience` seconds.

        While the database is away it waits. Each change has an event, and no lock is taken: a server that stops
        cancels its streams again and again.

        Args:
            seen: the last entry of each shard that the follower knows.
            was_away: what it knows of the database; then a change of that ends the wait too.
            patience: default as long as it takes.

        Raises:
            Exception: what ended the reader, no error of the database.
        """
        try:
            async with asyncio.timeout(patience):
                while not self._differs(seen, was_away):
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _differs(self, seen: Mapping[int, int], was_away: bool | None) -> bool:
        if self._failure is not None:
            raise self._failure
        if was_away is not None and self._is_away != was_away:
            return True
        grown = any(last > seen.get(shard, 0) for shard, last in self._ends.items())
        return not self._is_away and (grown or any(seq > self._ends.get(shard, 0) for shard, seq in seen.items()))

    async def _read(self) -> None:
        """Read the ends until nobody follows; go on when the database was away."""
        while self._followers:
            try:
                with unasked_cancel_fails():
                    ends = await read_ends(self._pool)
            except DATABASE_AWAY as error:
                if not self._is_away:
                    _log.warning("log_watch_waits", reason=f"{type(error).__name__}: {first_line(error)}")
                self._tell(self._ends, is_away=True)
                await asyncio.sleep(_AWAY_SECONDS)
            except Exception as error:
                self._failure = error
                self._wake()
                return
            else:
                self._tell(ends, is_away=False)
                await asyncio.sleep(PERIOD_SECONDS)

    def _tell(self, ends: dict[int, int], *, is_away: bool) -> None:
        if (ends, is_away) != (self._ends, self._is_away):
            self._ends, self._is_away = ends, is_away
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


# Ranges of the log. The planner passes over every partition outside the bounds of a statement that names a session.

_RANGES = """
SELECT shard, first_seq AS first, last_seq AS last FROM apc_log.sessions
WHERE session_id = ANY ($1::text[]) AND first_seq > 0 AND last_seq >= first_seq
  AND NOT EXISTS (SELECT FROM apc_log.shards WHERE bounded_seq < next_seq - 1)
"""
_WITHIN = re.compile(r"/\*within (\w+)\*/")
_PARAMETER = re.compile(r"\$(\d+)")
_LAST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries first <= seq <= last of a shard."""

    shard: int
    first: int
    last: int = _LAST


async def read_range(connection: asyncpg.Pool | AnyConnection, session_ids: Collection[str]) -> LogRange | None:
    """Return a range that holds every entry of these sessions.

    None where there is none, or it is not known: a session that never began, sessions of several shards, entries that
    the log writer's follower has yet to take in. Then the whole log is read.
    """
    wanted = set(session_ids)
    rows = await connection.fetch(_RANGES, list(wanted))
    if not rows or len(rows) < len(wanted) or len({row["shard"] for row in rows}) > 1:
        return None
    return LogRange(rows[0]["shard"], min(row["first"] for row in rows), max(row["last"] for row in rows))


def bounded(statement: str, bounds: LogRange | None, *values: Any) -> tuple[Any, ...]:
    """Return a statement and its parameters, to be sent as they are: `values`, then the bounds if they are known.

    `/*within NAME*/` behind a condition stands for the bounds of the table or view with this alias, and `/*range*/`
    behind an argument for those of a function. A statement is valid as it stands, without bounds.

    >>> bounded("SELECT FROM hops AS hop WHERE session_id = $1 /*within hop*/", LogRange(0, 5, 9), "s-1")
    ('SELECT FROM hops AS hop WHERE session_id = $1 AND hop.shard = $2 AND hop.seq BETWEEN $3 AND $4', 's-1', 0, 5, 9)
    """
    if bounds is None:
        return (statement, *values)
    return (_filled(statement), *values, bounds.shard, bounds.first, bounds.last)


@cache
def _filled(statement: str) -> str:
    at = max((int(number) for number in _PARAMETER.findall(statement)), default=0) + 1
    filled = _WITHIN.sub(rf"AND \1.shard = ${at} AND \1.seq BETWEEN ${at + 1} AND ${at + 2}", statement)
    return filled.replace("/*range*/", f", ${at}, ${at + 1}, ${at + 2}")

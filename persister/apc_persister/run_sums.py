"""Adds runs at rest to the sums that a lineage summary of the whole log is read from (migrations/sql/0111_uses.sql)."""

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import structlog

from apc_bus.backoff import Backoff
from apc_bus.database import DATABASE_AWAY

REST = timedelta(minutes=1)
"""A run that has had no verdict on a TRANSFER or an EVAL for so long is at rest."""
_INTERVAL = timedelta(seconds=20)
_LONGEST_PAUSE_S = 300.0
_SUM = "SELECT apc_log.sum_runs($1, 1)"

log = structlog.get_logger(__name__)


class RunSums:
    """Looks at every interval for runs that have come to rest, and adds one a transaction.

    A summary is exact without it, and slower: runs that are not added are read use by use. The database lets one
    process at a time do it.
    """

    def __init__(self, pool: asyncpg.Pool, *, rest: timedelta = REST, interval: timedelta = _INTERVAL) -> None:
        self._pool = pool
        self._rest = rest
        self._interval_s = interval.total_seconds()
        self.summed = 0
        """Runs that this process has added."""

    async def run(self, stop: asyncio.Event) -> None:
        """Sum until `stop` is set."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while not stop.is_set():
            try:
                while not stop.is_set() and await self._pool.fetchval(_SUM, datetime.now(UTC) - self._rest):
                    self.summed += 1
                backoff.reset()
                pause_s = self._interval_s
            except DATABASE_AWAY as error:
                pause_s = backoff.take()
                log.warning("runs_not_summed", reason=(str(error) or type(error).__name__).splitlines()[0])
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

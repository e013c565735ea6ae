"""Takes checkpoints out of the database as they are made: what is not out yet can be rewritten unseen."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta

import asyncpg
import structlog

from apc_bus.backoff import Backoff
from apc_bus.crash_points import crash_point
from apc_bus.database import DATABASE_AWAY
from apc_persister.errors import ExportFailed
from apc_persister.evidence.export.targets import name_of, open_target

MOST_NOTES = 1000
"""Checkpoints of one export; at full speed a shard makes about 20 a second."""
_LONGEST_PAUSE_S = 30.0

_BEGIN = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) VALUES ($1, $2, 0) ON CONFLICT DO NOTHING
"""
_EXPORTED = "SELECT tree_size FROM apc_log.checkpoint_exports WHERE shard = $1 AND target = $2 FOR UPDATE"
_NEXT = """
SELECT tree_size, note, recorded_at FROM apc_log.log_checkpoints
WHERE shard = $1 AND tree_size > $2 ORDER BY tree_size LIMIT $3
"""
_DONE = """
UPDATE apc_log.checkpoint_exports SET tree_size = $3, exported_at = now() WHERE shard = $1 AND target = $2
"""

log = structlog.get_logger(__name__)


class Exporter:
    """Exports the checkpoints of all shards of a database to one place outside, oldest first, each at least once.

    It follows table log_checkpoints, no matter who writes it: one that a killed writer left is exported by the next.
    """

    def __init__(self, pool: asyncpg.Pool, shards: int, target: str, interval: timedelta) -> None:
        """Open `target` like `open_target`. Raises ExportFailed: it cannot be used."""
        self._pool = pool
        self._shards = shards
        self._target_name = name_of(target)
        self._target = open_target(target)
        self._interval_s = interval.total_seconds()
        self.exported = 0
        """Checkpoints exported since the start."""
        self.failures = 0
        self.oldest_waiting: float | None = None
        """Time (time.time) of the oldest checkpoint that the last look found and that is not out; None = none is."""
        self.newest_exported: float | None = None
        """Time of the newest checkpoint that is out, as far as this process has seen."""

    async def run(self, stop: asyncio.Event) -> None:
        """Export until `stop` is set, then once more: call after the writers have ended."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while True:
            is_last = stop.is_set()
            try:
                for shard in range(self._shards):
                    while await self._export(shard) == MOST_NOTES:
                        pass
                backoff.reset()
                pause_s = self._interval_s
            except (*DATABASE_AWAY, ExportFailed) as error:
                self.failures += 1
                pause_s = backoff.take()
                reason = (str(error) or type(error).__name__).splitlines()[0]
                log.warning("checkpoints_not_exported", target=self._target_name, reason=reason)
            if is_last:
                return
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

    @property
    def exposed_seconds(self) -> float:
        """For how long the oldest checkpoint waits that is not out; 0 when all are."""
        return 0.0 if self.oldest_waiting is None else max(0.0, time.time() - self.oldest_waiting)

    @property
    def exported_age_seconds(self) -> float:
        """How long ago the newest exported checkpoint was made; infinite before the first."""
        return float("inf") if self.newest_exported is None else max(0.0, time.time() - self.newest_exported)

    async def _export(self, shard: int) -> int:
        """Export the next checkpoints of a shard; how many. The lock keeps a standby from doing the same."""
        async with self._pool.acquire() as connection, connection.transaction():
            exported = await connection.fetchval(_EXPORTED, shard, self._target_name)
            if exported is None:
                await connection.execute(_BEGIN, shard, self._target_name)
                exported = await connection.fetchval(_EXPORTED, shard, self._target_name)
            rows = await connection.fetch(_NEXT, shard, exported, MOST_NOTES)
            if rows:
                await self._put(shard, rows)
                await connection.execute(_DONE, shard, self._target_name, rows[-1]["tree_size"])
        return len(rows)

    async def _put(self, shard: int, rows: Sequence[asyncpg.Record]) -> None:
        self.oldest_waiting = rows[0]["recorded_at"].timestamp()
        await self._target.put(shard, rows[-1]["tree_size"], "".join(f"{row['note']}\n" for row in rows))
        crash_point("persister.after_export")
        self.oldest_waiting = None
        self.newest_exported = rows[-1]["recorded_at"].timestamp()
        self.exported += len(rows)

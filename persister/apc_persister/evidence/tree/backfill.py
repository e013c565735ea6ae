"""Takes into the tree what was logged by SQL (an erasure, a maintenance) when no batch comes to take it along."""

import asyncio
from datetime import timedelta

import asyncpg
import structlog

from apc_bus.backoff import Backoff
from apc_bus.database import DATABASE_AWAY
from apc_persister.errors import TreeBroken
from apc_persister.evidence.tree.checkpoint import Signer
from apc_persister.evidence.tree.tree_signer import TreeSigner
from apc_persister.writing.head import lock_head

_LONGEST_PAUSE_S = 30.0
_WAITING = """
SELECT shard FROM apc_log.shards LEFT JOIN apc_log.log_edges USING (shard)
WHERE next_seq - 1 > coalesce(tree_size, 0) AND shard < $1 ORDER BY shard
"""

log = structlog.get_logger(__name__)


class TreeBackfill:
    """Looks at every interval for entries of a database that are not in the tree, and attests them.

    The writer does the same with its next transaction; the lock on the shard's head lets one of them at a time.
    """

    def __init__(
        self, pool: asyncpg.Pool, signer: Signer, shards: int, interval: timedelta, patience: timedelta
    ) -> None:
        """Prepare the backfill; the server ends a statement after `patience`, so the writer waits no longer."""
        self._pool = pool
        self._signer = signer
        self._shards = shards
        self._interval_s = interval.total_seconds()
        self._patience_ms = int(patience.total_seconds() * 1000)

    async def run(self, stop: asyncio.Event) -> None:
        """Attest until `stop` is set. Raises TreeBroken when a tree does not fit its rows: the writer stops too."""
        backoff = Backoff(2 * self._interval_s, _LONGEST_PAUSE_S)
        while not stop.is_set():
            try:
                for row in await self._pool.fetch(_WAITING, self._shards):
                    await self._attest(row["shard"])
                backoff.reset()
                pause_s = self._interval_s
            except TreeBroken as error:
                log.critical("backfill_failed", reason=str(error))
                raise
            except DATABASE_AWAY as error:
                pause_s = backoff.take()
                reason = (str(error) or type(error).__name__).splitlines()[0]
                log.warning("backfill_failed", reason=reason)
            try:
                await asyncio.wait_for(stop.wait(), pause_s)
            except TimeoutError:
                pass

    async def _attest(self, shard: int) -> None:
        async with self._pool.acquire() as connection, connection.transaction():
            await connection.execute(
                f"SET LOCAL statement_timeout = {self._patience_ms};"
                f"SET LOCAL idle_in_transaction_session_timeout = {self._patience_ms}"
            )
            head, _ = await lock_head(connection, shard)
            await TreeSigner(shard, self._signer).attest(connection, head.next_seq, [])

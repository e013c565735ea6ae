"""Checks of what the gates have logged and the database does not hold yet."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta

import asyncpg

from apc_bus.port import QueueDepth
from apc_bus.topology import log_queue
from apc_console.doctor.finding import Finding, ok, warning, wrong
from apc_log.heads import read_head
from apc_log.queries.health import read_age

PATIENCE = timedelta(seconds=3)
"""A working writer commits at least once in this time."""
_POLL_S = 0.2


async def look_at_lag(pool: asyncpg.Pool, depths: dict[str, QueueDepth], shards: Iterable[int]) -> list[Finding]:
    """Check, for each shard, how many log batches wait, how old the log's end is, and whether it grows."""
    return [await _shard(pool, depths[log_queue(shard)], shard) for shard in shards if log_queue(shard) in depths]


async def _shard(pool: asyncpg.Pool, depth: QueueDepth, shard: int) -> Finding:
    if depth.messages == 0:
        if depth.consumers:
            return ok("log", f"shard {shard}: written up to date")
        return warning("log", f"shard {shard}: nothing waits, and no log writer runs", "apc serve persister")
    age = await read_age(pool, shard)
    since = "nothing was written yet" if age is None else f"the last entry was written {age:.1f} s ago"
    waiting = f"shard {shard}: {depth.messages} log batches wait; {since}"
    if depth.consumers == 0:
        return wrong("log", f"{waiting}; no log writer runs", "apc serve persister")
    if await _moves(pool, shard):
        return ok("log", f"{waiting}; the writer is at work")
    return wrong("log", f"{waiting}; the writer stands still", "its own log says why (log_stopped, log_database_away)")


async def _moves(pool: asyncpg.Pool, shard: int) -> bool:
    before = await read_head(pool, shard)
    for _ in range(int(PATIENCE.total_seconds() / _POLL_S)):
        await asyncio.sleep(_POLL_S)
        if await read_head(pool, shard) != before:
            return True
    return False

"""`apc packet replay`: everything that happened in a run, in the order of the log."""

import heapq
from collections.abc import AsyncIterator

import asyncpg

from apc_persister.queries.rows import CoordinationRow, LogRow, Position
from apc_persister.queries.statements import COORDINATION, HEADS, to_row
from apc_persister.queries.trace import BEGINNING, list_agent_packets, transitions_of

_PAGE = 500
_Key = tuple[int, int, int]


async def replay(pool: asyncpg.Pool, run_id: str, task_id: str | None = None) -> AsyncIterator[LogRow]:
    """Packets, transitions and the sessions' coordination events of a run, streamed in causal order.

    Causal order is (shard, seq): a session lives in one shard, and what follows from an entry comes behind
    it. With `task_id` only the packets of that task and their transitions; coordination events are the
    sessions' own and stay. The log as it is when the replay begins: it only grows, so no transaction is held
    open while the caller reads.
    """
    ends = {record["shard"]: record["last"] for record in await pool.fetch(HEADS)}
    waiting: list[tuple[_Key, LogRow]] = []
    position = BEGINNING
    is_last = False
    while not is_last:
        packets = await list_agent_packets(pool, run_id=run_id, task_id=task_id, limit=_PAGE, after=position)
        is_last = len(packets) < _PAGE
        # Later packets and all that follows from them lie behind this page's last packet: up to it, it is
        # complete.
        complete_to = Position(max(ends, default=0), 2**62) if is_last else packets[-1].position
        rows: list[LogRow] = [*packets, *await transitions_of(pool, packets)]
        rows += await _coordination(pool, run_id, position, complete_to)
        for row in rows:
            if row.seq <= ends.get(row.shard, 0):
                heapq.heappush(waiting, (_key(row), row))
        while waiting and waiting[0][0] <= (*complete_to, 2**62):
            yield heapq.heappop(waiting)[1]
        position = complete_to


async def _coordination(pool: asyncpg.Pool, run_id: str, after: Position, to: Position) -> list[CoordinationRow]:
    records = await pool.fetch(COORDINATION, run_id, *after, *to)
    return [to_row(CoordinationRow, record) for record in records]


def _key(row: LogRow) -> _Key:
    return (row.shard, row.seq, getattr(row, "ordinal", 0))

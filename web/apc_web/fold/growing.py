"""Snapshots of a long session from entries that the database has counted: each of them read singly takes minutes."""

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_log.queries.packet_pages import EntryRow, entries_at
from apc_log.queries.session_pages import CountedRanges, SessionPlace, count_ranges, extent_of
from apc_web.fold.entries import fold_entry
from apc_web.fold.fold import Folded
from apc_web.fold.snapshots import EVERY, SessionSnapshots

_ENTRIES_A_PACKET = 4
"""What a packet brings about: itself, its route, two hops of a delivery."""
_RANGES_A_STEP = 200
"""Ranges that one statement counts: it ends within the time limit of a statement."""


async def grow_snapshots(
    pool: asyncpg.Pool, contract: Contract, place: SessionPlace, kept: SessionSnapshots, last: int
) -> None:
    """Keep snapshots of a session up to a position that the log has reached, some hundred entries apart."""
    packets, first = await extent_of(pool, place.session_id, place.shard)
    start = kept.reached or first - 1
    width = max(EVERY, (last - first) * EVERY // max(packets * _ENTRIES_A_PACKET, 1))
    state = kept.before(start + 1)
    while (steps := min((last - start) // width, _RANGES_A_STEP)) > 0:
        end = start + steps * width
        counted = await count_ranges(pool, place.session_id, place.shard, after=start, last=end, width=width)
        single = await entries_at(pool, place.shard, counted.single)
        _fold_ranges(state, kept, contract, counted, single, start=start, width=width, steps=steps)
        kept.reached = start = end


def _fold_ranges(
    state: Folded,
    kept: SessionSnapshots,
    contract: Contract,
    counted: CountedRanges,
    single: list[EntryRow],
    *,
    start: int,
    width: int,
    steps: int,
) -> None:
    """Fold counted entries range by range, and keep the state after each."""
    packets, hops, singles = list(counted.packets)[::-1], list(counted.hops)[::-1], single[::-1]
    for number in range(steps):
        end, before = start + (number + 1) * width, state.entries
        while packets and packets[-1].range == number:
            state.take_packets(packets.pop())
        while hops and hops[-1].range == number:
            state.take_hops(hops.pop())
        while singles and singles[-1].seq <= end:
            state.take(fold_entry(singles.pop(), contract))
        state.seq, state.at = end, None
        if state.entries > before:
            kept.keep(state)

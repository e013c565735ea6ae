"""A session in time: its state at a position, and its packets as columns for drawing.

The state comes from the nearest snapshot. Of a long session snapshots are kept from entries that the database has
counted: each of them read singly takes minutes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import orjson

from apc_contracts.contract.contract import Contract
from apc_log.queries.packet_pages import entries_at, entries_of_session, timeline_rows, timeline_rulings
from apc_log.queries.session_pages import CountedRanges, SessionPlace, count_ranges, extent_of, find_session, last_entry
from apc_log.session_loading import contract_of_session
from apc_web.fold import EVERY, Folded, SessionSnapshots, fold_entry
from apc_web.models import FoldEntry, SessionAt
from apc_web.route_services import Services

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
    single: Sequence[asyncpg.Record],
    *,
    start: int,
    width: int,
    steps: int,
) -> None:
    """Fold counted entries range by range, and keep the state after each."""
    packets, hops, singles = list(counted.packets)[::-1], list(counted.hops)[::-1], list(single)[::-1]
    for number in range(steps):
        end, before = start + (number + 1) * width, state.entries
        while packets and packets[-1].range == number:
            state.take_packets(packets.pop())
        while hops and hops[-1].range == number:
            state.take_hops(hops.pop())
        while singles and singles[-1]["seq"] <= end:
            state.take(fold_entry(singles.pop(), contract))
        state.seq, state.at = end, None
        if state.entries > before:
            kept.keep(state)


# A session at a position: from the nearest snapshot, folded forward in steps.

_LOOK_AHEAD = 50
"""Entries behind the asked one in which the end of its input is looked for."""
_FAR = 4 * EVERY
"""Positions behind the last snapshot beyond which further ones are made first."""


async def session_at(services: Services, session_id: str, seq: int) -> SessionAt | None:
    """Return a session after the input that an entry belongs to; None when the log holds no such session."""
    place = await find_session(services.pool, session_id)
    if place is None:
        return None
    contract = await contract_of_session(services.pool, place.document.contract_hash, services.contract)
    kept = services.snapshots.of(session_id)
    if seq - kept.reached > _FAR:
        async with kept.growing:
            last = min(seq, await last_entry(services.pool, place.session_id, place.shard))
            if last - kept.reached > _FAR:
                await grow_snapshots(services.pool, contract, place, kept, last)
    state, entry = await _fold_to(services.pool, contract, place, kept.before(seq), seq)
    if entry is None and state.entries:  # a snapshot does not know the time of its last entry
        state, entry = await _fold_to(services.pool, contract, place, kept.before(state.seq), seq)
    await _finish_input(services.pool, contract, place, state, entry)
    return state.shown(session_id, place.shard)


async def _fold_to(
    pool: asyncpg.Pool, contract: Contract, place: SessionPlace, state: Folded, seq: int
) -> tuple[Folded, FoldEntry | None]:
    """Fold the entries up to a position; return the state and the last of them."""
    last: FoldEntry | None = None
    while True:
        rows = await entries_of_session(pool, place.session_id, place.shard, after=state.seq, last=seq, limit=EVERY)
        for row in rows:
            last = fold_entry(row, contract)
            state.take(last)
        if len(rows) < EVERY:
            return state, last


async def _finish_input(
    pool: asyncpg.Pool, contract: Contract, place: SessionPlace, state: Folded, last: FoldEntry | None
) -> None:
    """Fold the entries behind the last one that the same packet caused."""
    rows = await entries_of_session(
        pool,
        place.session_id,
        place.shard,
        after=state.seq,
        last=state.seq + _LOOK_AHEAD,
        limit=_LOOK_AHEAD,
    )
    for row in rows:
        entry = fold_entry(row, contract)
        if last is None or entry.kind == "packet" or entry.packet_id != last.packet_id:
            return
        if entry.kind == "hop" and entry.recipient:
            return
        state.take(entry)
        last = entry


# A session's packets as columns: written as JSON at once, because 100,000 models would take seconds.

LARGEST_PAGE = 100_000
"""Packets of one answer."""
VERDICTS = ["accepted", "refused", "held"]


@dataclass(frozen=True, slots=True)
class TimelineBody:
    """The columns of a page, as TimelineColumns has them."""

    content: dict[str, Any]

    def finish(self, following: str | None) -> bytes:
        """Return the JSON bytes with the cursor of the next page."""
        return orjson.dumps({**self.content, "next": following})


async def timeline_of(
    pool: asyncpg.Pool, place: SessionPlace, after: int, limit: int
) -> tuple[TimelineBody, int | None]:
    """Return the columns of at most `limit` packets behind `after`, and the last seq when there are more."""
    rows, rulings = await asyncio.gather(
        timeline_rows(pool, place.session_id, place.shard, after=after, limit=limit + 1),
        timeline_rulings(pool, place.session_id, place.shard, after=after),
    )
    shown = rows[:limit]
    last = shown[-1][0] if len(rows) > limit else None
    columns = await asyncio.to_thread(_columns, shown, rulings)  # half a second for 100,000 packets
    return TimelineBody({"session_id": place.session_id, "shard": place.shard, **columns}), last


def _columns(rows: Sequence[asyncpg.Record], rulings: Mapping[int, tuple[str, str]]) -> dict[str, Any]:
    names = ("seq", "time", "sender", "type", "verdict", "code", "generation", "packet", "cause", "parent")
    columns: dict[str, Sequence[Any]] = dict.fromkeys(names, ())
    if rows:
        columns |= dict(zip(names, zip(*rows, strict=True), strict=True))
    start = columns["time"][0] if rows else 0
    row_of = {packet_id: row for row, packet_id in enumerate(columns["packet"])}
    if rulings:
        columns["verdict"], columns["code"] = _ruled(columns, rulings)
    lanes, lane = _indexed(columns["sender"])
    types, kinds = _indexed(columns["type"])
    codes, code = _indexed(columns["code"], [""])
    verdicts, verdict = _indexed(columns["verdict"], VERDICTS)
    return {
        "start": datetime.fromtimestamp(start / 1000, UTC),
        "lanes": lanes,
        "types": types,
        "verdicts": verdicts,
        "codes": codes,
        "seq": columns["seq"],
        "time": [at - start for at in columns["time"]],
        "lane": lane,
        "type": kinds,
        "verdict": verdict,
        "code": code,
        "generation": columns["generation"],
        "cause": _back(columns["cause"], row_of),
        "parent": _back(columns["parent"], row_of),
    }


def _indexed(values: Sequence[str], first: Sequence[str] = ()) -> tuple[list[str], list[int]]:
    """Return the different values in the order in which they come, and each value's index."""
    index = {value: at for at, value in enumerate(first)}
    places = [index.setdefault(value, len(index)) for value in values]
    return list(index), places


def _ruled(columns: Mapping[str, Sequence[Any]], rulings: Mapping[int, tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return verdicts and codes with the final ones of held packets."""
    verdicts, codes = list(columns["verdict"]), list(columns["code"])
    for row, packet_id in enumerate(columns["packet"]):
        if verdicts[row] == "held" and packet_id in rulings:
            verdicts[row], codes[row] = rulings[packet_id]
    return verdicts, codes


def _back(above: Sequence[Any], row_of: dict[Any, int]) -> list[int]:
    """Return how many rows back each neighbour is; 0 when it is not on this page or comes later."""
    return [0 if packet_id is None else max(row - row_of.get(packet_id, row), 0) for row, packet_id in enumerate(above)]

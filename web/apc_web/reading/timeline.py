"""A session's packets as columns: written as JSON at once, because 100,000 models would take seconds."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import orjson

from apc_log.queries.packet_pages import timeline_rows, timeline_rulings
from apc_log.queries.session_pages import SessionPlace

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

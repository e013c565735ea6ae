"""Pages of packets: filters that are safe for a large log, and text search with a limit."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import asyncpg

from apc_log.queries.packet_pages import SCOPES, UNINDEXED, PacketLine, page_of_packets, search_packets
from apc_log.queries.trace import Position
from apc_web.cursors import read_cursor, write_cursor
from apc_web.errors import invalid
from apc_web.models.packets import PacketPage, PacketSummary

_SEARCHED = 20_000
"""Packets that one search looks at."""
_SEARCH_SECONDS = 2.0
_STEP = 1_000


@dataclass(frozen=True, slots=True)
class PacketQuery:
    """What a list of packets is narrowed to."""

    given: Mapping[str, Any]
    text: str | None
    newest: bool

    @classmethod
    def of(cls, given: Mapping[str, Any], *, text: str | None, newest: bool) -> "PacketQuery":
        """Return the query of these filters. Raises ApiError when one of them needs a scope and there is none."""
        narrowed = {name: value for name, value in given.items() if value is not None}
        alone = UNINDEXED & narrowed.keys()
        if alone and not SCOPES & narrowed.keys():
            name = min(alone)
            raise invalid(name, f"{name} needs run_id, session_id or task_id beside it: the log has no index for it")
        return cls(narrowed, text, newest)

    @property
    def filters(self) -> Mapping[str, object]:
        """Return what binds a cursor to this query."""
        return {**self.given, "text": self.text, "newest": self.newest}


async def packets_page(pool: asyncpg.Pool, query: PacketQuery, after: str | None, limit: int) -> PacketPage:
    """Return one page of packets. Raises ApiError for a bad cursor."""
    found = read_cursor(after, "packets", query.filters, int, int)
    place = None if found is None else _position(found)
    if query.text is not None:
        return await _search(pool, query, query.text, place, limit)
    rows = await page_of_packets(pool, query.given, newest=query.newest, after=place, limit=limit + 1)
    shown = rows[:limit]
    cursor = _cursor(query, shown[-1].shard, shown[-1].seq) if len(rows) > limit else None
    return PacketPage(items=[summary(row) for row in shown], next=cursor)


async def _search(pool: asyncpg.Pool, query: PacketQuery, text: str, place: Position | None, limit: int) -> PacketPage:
    found: list[PacketLine] = []
    looked_at, until = 0, asyncio.get_running_loop().time() + _SEARCH_SECONDS
    while True:
        step = await search_packets(pool, query.given, text, newest=query.newest, after=place, look_at=_STEP)
        looked_at += step.looked_at
        if len(found) + len(step.found) > limit:  # go on behind the last one that is shown
            shown = (found + step.found)[:limit]
            place = Position(shown[-1].shard, shown[-1].seq)
            return _found(query, shown, place, looked_at, is_complete=True)
        found += step.found
        place = step.last or place
        if step.looked_at < _STEP:
            return _found(query, found, None, looked_at, is_complete=True)
        if looked_at >= _SEARCHED or asyncio.get_running_loop().time() > until:
            return _found(query, found, place, looked_at, is_complete=False)


def _found(
    query: PacketQuery, rows: list[PacketLine], place: Position | None, looked_at: int, *, is_complete: bool
) -> PacketPage:
    cursor = None if place is None else _cursor(query, *place)
    items = [summary(row) for row in rows]
    return PacketPage(items=items, next=cursor, looked_at=looked_at, is_complete=is_complete)


def _cursor(query: PacketQuery, shard: int, seq: int) -> str:
    return write_cursor("packets", query.filters, shard, seq)


def _position(values: list[Any]) -> Position:
    shard, seq = values
    return Position(max(min(shard, (1 << 31) - 1), -1), seq)


def summary(row: PacketLine) -> PacketSummary:
    """Return a packet as lists show it."""
    return PacketSummary(
        shard=row.shard,
        seq=row.seq,
        packet_id=row.packet_id,
        packet_type=row.packet_type,
        session_id=row.session_id,
        run_id=row.run_id,
        task_id=row.task_id,
        run_phase=row.run_phase,
        round=row.round,
        generation=row.generation,
        step=row.step,
        sender=row.sender_agent_id,
        sender_role=row.sender_role,
        sender_swarm=row.sender_swarm_id,
        recipients=row.recipients,
        judged_at=row.judged_at,
        verdict=row.verdict,
        refusal_code=row.refusal_code,
        state=row.state,
        parent_packet_id=row.parent_packet_id,
        cause_packet_id=row.cause_packet_id,
        is_stale=row.is_stale,
    )

"""`apc packet trace`: packets that match, with their states and transitions."""

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

import asyncpg

from apc_log.queries.bodies import opened_bodies
from apc_log.queries.rows import PacketRow, PacketTimeline, Position, Staleness, TracePage, TransitionRow
from apc_log.queries.statements import STALE, STATES, TRANSITIONS, page_of_packets, to_row

BEGINNING = Position(-1, 0)
"""Before the first entry of the log."""


async def trace(
    pool: asyncpg.Pool,
    *,
    run_id: str | None = None,
    session_id: str | None = None,
    task_id: str | None = None,
    packet_id: UUID | None = None,
    packet_type: str | None = None,
    run_phase: str | None = None,
    trace_id: UUID | None = None,
    limit: int = 100,
    with_events: bool = True,
    after: Position | None = None,
) -> TracePage:
    """Return one page of packets that match every filter, oldest first; `trace_id` is the root packet's id.

    `limit` is the largest number of packets; go on with `after=page.after` until that is None.
    """
    rows = await list_agent_packets(
        pool,
        run_id=run_id,
        session_id=session_id,
        task_id=task_id,
        packet_id=packet_id,
        packet_type=packet_type,
        run_phase=run_phase,
        trace_id=trace_id,
        limit=limit,
        after=after,
    )
    states = await _states_of(pool, rows)
    stale = await stale_packets(pool, rows)
    transitions = await transitions_of(pool, rows) if with_events else []
    steps: dict[tuple[str, UUID], list[TransitionRow]] = {}
    for row in transitions:
        steps.setdefault((row.session_id, row.packet_id), []).append(row)
    packets = tuple(
        PacketTimeline(row, state, tuple(steps.get(key, ())), stale.get(key))
        for row, state in zip(await opened_bodies(pool, rows), states, strict=True)
        for key in [(row.session_id, row.packet_id)]
    )
    return TracePage(packets, rows[-1].position if len(rows) == limit else None)


async def list_agent_packets(
    pool: asyncpg.Pool,
    *,
    run_id: str | None = None,
    session_id: str | None = None,
    task_id: str | None = None,
    packet_id: UUID | None = None,
    packet_type: str | None = None,
    run_phase: str | None = None,
    trace_id: UUID | None = None,
    limit: int = 100,
    after: Position | None = None,
) -> list[PacketRow]:
    """Return packets that match every filter, in the order of the log, after `after`."""
    filters: dict[str, Any] = {
        "run_id": run_id,
        "session_id": session_id,
        "task_id": task_id,
        "packet_id": packet_id,
        "packet_type": packet_type,
        "run_phase": run_phase,
        "root_packet_id": trace_id,
    }
    statement, values = page_of_packets({name: value for name, value in filters.items() if value is not None})
    records = await pool.fetch(statement, *values, *(after or BEGINNING), limit)
    return [to_row(PacketRow, record) for record in records]


async def list_packet_events(
    pool: asyncpg.Pool, packet_id: UUID, *, session_id: str | None = None
) -> list[TransitionRow]:
    """Return the transitions of one packet, in order; of all sessions that know the id when none is given."""
    packets = await list_agent_packets(pool, packet_id=packet_id, session_id=session_id)
    return await transitions_of(pool, packets)


async def get_packet_timeline(
    pool: asyncpg.Pool, packet_id: UUID, *, session_id: str | None = None
) -> PacketTimeline | None:
    """Return one packet with its state and transitions; None if the log does not have it."""
    page = await trace(pool, packet_id=packet_id, session_id=session_id, limit=1)
    return page.packets[0] if page.packets else None


async def transitions_of(pool: asyncpg.Pool, packets: Sequence[PacketRow]) -> list[TransitionRow]:
    """Return the transitions of these packets, in the order of the log."""
    if not packets:
        return []
    sessions = [packet.session_id for packet in packets]
    ids = [packet.packet_id for packet in packets]
    return [to_row(TransitionRow, record) for record in await pool.fetch(TRANSITIONS, sessions, ids)]


async def stale_packets(pool: asyncpg.Pool, packets: Sequence[PacketRow]) -> dict[tuple[str, UUID], Staleness]:
    """Return why packets are stale, by session and packet; those that are not are left out."""
    sessions, ids = [packet.session_id for packet in packets], [packet.packet_id for packet in packets]
    return {
        (row["session_id"], row["packet_id"]): Staleness(
            row["because_packet_id"], row["retraction_packet_id"], row["marked_at"]
        )
        for row in await pool.fetch(STALE, sessions, ids)
    }


async def _states_of(pool: asyncpg.Pool, packets: Iterable[PacketRow]) -> list[str]:
    by_shard: dict[int, list[int]] = {}
    for packet in packets:
        by_shard.setdefault(packet.shard, []).append(packet.seq)
    states: list[str] = []
    for shard, numbers in by_shard.items():  # both in the order of the log, as the packets are
        states += [record[0] for record in await pool.fetch(STATES, shard, numbers)]
    return states

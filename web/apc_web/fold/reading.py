"""A session at a position: from the nearest snapshot, folded forward in steps."""

import asyncpg

from apc_contracts.contract.contract import Contract
from apc_log.queries.packet_pages import entries_of_session
from apc_log.queries.session_pages import SessionPlace, find_session, last_entry
from apc_log.session_loading import contract_of_session
from apc_web.fold.entries import fold_entry
from apc_web.fold.fold import Folded
from apc_web.fold.growing import grow_snapshots
from apc_web.fold.snapshots import EVERY
from apc_web.models.timeline import FoldEntry, SessionAt
from apc_web.route_services import Services

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

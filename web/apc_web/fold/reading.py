"""A session at a position: from the nearest snapshot, folded forward in steps."""

from apc_log.queries.pages.entries import entries_of_session
from apc_log.queries.pages.sessions import find_session
from apc_web.fold.entries import fold_entry
from apc_web.fold.fold import Folded
from apc_web.fold.snapshots import EVERY
from apc_web.models.timeline import FoldEntry, SessionAt
from apc_web.services import Services

_LOOK_AHEAD = 50
"""Entries behind the asked one in which the end of its input is looked for."""


async def session_at(services: Services, session_id: str, seq: int) -> SessionAt | None:
    """Return a session after the input that an entry belongs to; None when the log holds no such session."""
    place = await find_session(services.pool, session_id)
    if place is None:
        return None
    kept = services.snapshots.of(session_id)
    state = kept.before(seq)
    last: FoldEntry | None = None
    while True:
        rows = await entries_of_session(
            services.pool, session_id, place.shard, after=state.seq, last=seq, limit=EVERY - state.entries % EVERY
        )
        for row in rows:
            last = fold_entry(row, services.contract)
            state.take(last)
        if rows and state.entries % EVERY == 0:
            kept.keep(state)
        elif state.entries % EVERY or not rows:
            break
    await _finish_input(services, session_id, place.shard, state, last)
    return state.shown(session_id, place.shard)


async def _finish_input(services: Services, session_id: str, shard: int, state: Folded, last: FoldEntry | None) -> None:
    """Fold the entries behind the last one that the same packet caused."""
    rows = await entries_of_session(
        services.pool, session_id, shard, after=state.seq, last=state.seq + _LOOK_AHEAD, limit=_LOOK_AHEAD
    )
    for row in rows:
        entry = fold_entry(row, services.contract)
        if last is None or entry.kind == "packet" or entry.packet_id != last.packet_id:
            return
        if entry.kind == "hop" and entry.recipient:
            return
        state.take(entry)
        last = entry

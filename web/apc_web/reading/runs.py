"""Lists of runs and sessions."""

from collections import Counter

import asyncpg

from apc_contracts.payloads.budget_expression import RESOURCES
from apc_contracts.session import SessionDocument
from apc_log.queries.session_pages import RunFigures, SessionPlace, find_session, page_of_runs, page_of_sessions
from apc_web.cursors import microseconds, read_cursor, time_of, write_cursor
from apc_web.errors import not_found
from apc_web.models.model_base import NamedCount
from apc_web.models.runs import RunPage, RunSummary, SessionPage, SessionSummary

_SHOWN_SESSIONS = 20


async def runs_page(pool: asyncpg.Pool, after: str | None, limit: int) -> RunPage:
    """Return runs, the one that changed last first. Raises ApiError for a bad cursor."""
    found = read_cursor(after, "runs", {}, int, str)
    before = None if found is None else (time_of(found[0]), found[1])
    rows = await page_of_runs(pool, before=before, limit=limit + 1)
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        cursor = write_cursor("runs", {}, microseconds(shown[-1].updated_at), shown[-1].run_id)
    return RunPage(items=[_run(row) for row in shown], next=cursor)


async def one_run(pool: asyncpg.Pool, run_id: str) -> RunSummary:
    """Return a run. Raises ApiError when the log holds none of that name."""
    rows = await page_of_runs(pool, run_id=run_id, limit=1)
    if not rows:
        raise not_found(f"run {run_id!r}", "`GET /runs` lists them", "run_id")
    return _run(rows[0])


async def sessions_page(
    pool: asyncpg.Pool, run_id: str | None, running: bool | None, after: str | None, limit: int
) -> SessionPage:
    """Return sessions, the one that changed last first. Raises ApiError for a bad cursor."""
    filters = {"run_id": run_id, "running": running}
    found = read_cursor(after, "sessions", filters, int, str)
    before = None if found is None else (time_of(found[0]), found[1])
    rows = await page_of_sessions(pool, run_id=run_id, only_running=running, before=before, limit=limit + 1)
    shown = rows[:limit]
    cursor = None
    if len(rows) > limit:
        cursor = write_cursor("sessions", filters, microseconds(shown[-1].updated_at), shown[-1].session_id)
    return SessionPage(items=[session_summary(row) for row in shown], next=cursor)


async def place_of(pool: asyncpg.Pool, session_id: str) -> SessionPlace:
    """Return a session. Raises ApiError when the log holds none of that name."""
    place = await find_session(pool, session_id)
    if place is None:
        raise not_found(f"session {session_id!r}", "`GET /sessions` lists them", "session_id")
    return place


def session_summary(place: SessionPlace) -> SessionSummary:
    """Return a session as lists show it."""
    document = place.document
    return SessionSummary(
        session_id=place.session_id,
        run_id=document.run_id,
        task_id=document.task_id,
        shard=place.shard,
        state=document.state,
        run_phase=document.run_phase.value,
        is_terminal=place.is_terminal,
        is_paused=document.paused_at is not None,
        round=document.round,
        generation=document.generation,
        open_deliveries=place.open_deliveries,
        spent=_spent(document),
        opened_at=document.opened_at,
        updated_at=place.updated_at,
        halt_reason=document.halt_reason if document.state == "HALTED" else None,
    )


def _run(row: RunFigures) -> RunSummary:
    spent: Counter[str] = Counter()
    for _, _, document in row.latest:
        spent.update(_spent(document))
    states = Counter(state for _, state, _ in row.latest)
    return RunSummary(
        run_id=row.run_id,
        sessions=row.sessions,
        running=row.running,
        states=[NamedCount(name=name, count=count) for name, count in states.most_common()],
        session_ids=[session_id for session_id, _, _ in row.latest[:_SHOWN_SESSIONS]],
        spent=dict(spent),
        open_deliveries=row.open_deliveries,
        updated_at=row.updated_at,
    )


def _spent(document: SessionDocument) -> dict[str, float]:
    return {name: document.spent[name] for name in RESOURCES if name in document.spent}

"""Routes of runs and sessions."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from apc_web import runs as reading
from apc_web.access import AccountRole
from apc_web.cursors import After, Limit, OfRun, SessionName, read_cursor, write_cursor
from apc_web.errors import not_found
from apc_web.models import SessionAt, TimelineColumns
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Serving
from apc_web.runs import RunPage, RunSummary, SessionDetail, SessionMoves, SessionPage, SessionScores
from apc_web.session import moves_of, scores_of, session_detail
from apc_web.timeline import LARGEST_PAGE, session_at, timeline_of

router = APIRouter(tags=["runs and sessions"], route_class=RoleRoute)
_LARGEST_SEQ = (1 << 63) - 1


@router.get("/runs", response_model=RunPage)
@needs(AccountRole.VIEWER)
async def list_runs(services: Serving, after: After = None, limit: Limit = 50) -> RunPage:
    """Return runs, the one that changed last first."""
    return await reading.runs_page(services.pool, after, limit)


@router.get("/runs/{run_id}", response_model=RunSummary)
@needs(AccountRole.VIEWER)
async def get_run(services: Serving, run_id: SessionName) -> RunSummary:
    """Return one run."""
    return await reading.one_run(services.pool, run_id)


@router.get("/sessions", response_model=SessionPage)
@needs(AccountRole.VIEWER)
async def list_sessions(
    services: Serving,
    run_id: OfRun = None,
    running: Annotated[bool | None, Query(description="Only those that run, or only those that ended.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> SessionPage:
    """Return sessions, the one that changed last first."""
    return await reading.sessions_page(services.pool, run_id, running, after, limit)


@router.get("/sessions/{session_id}", response_model=SessionDetail)
@needs(AccountRole.VIEWER)
async def get_session(services: Serving, session_id: SessionName) -> SessionDetail:
    """Return one session: its state, what it waits for, budgets, members, refusals."""
    return await session_detail(services, session_id)


@router.get("/sessions/{session_id}/moves", response_model=SessionMoves)
@needs(AccountRole.VIEWER)
async def list_moves(
    services: Serving, session_id: SessionName, after: After = None, limit: Limit = 500
) -> SessionMoves:
    """Return transitions and barriers of a session, oldest first."""
    return await moves_of(services, session_id, after, limit)


@router.get("/sessions/{session_id}/scores", response_model=SessionScores)
@needs(AccountRole.VIEWER)
async def get_scores(services: Serving, session_id: SessionName) -> SessionScores:
    """Return scores by generation and swarm, and the transfers between swarms."""
    return await scores_of(services, session_id)


@router.get("/sessions/{session_id}/timeline", response_model=TimelineColumns)
@needs(AccountRole.VIEWER)
async def get_timeline(
    services: Serving,
    session_id: SessionName,
    after: After = None,
    limit: Annotated[int, Query(ge=1, le=LARGEST_PAGE, description="At most this many packets.")] = LARGEST_PAGE,
) -> Response:
    """Return a session's packets as columns, for drawing."""
    place = await reading.place_of(services.pool, session_id)
    found = read_cursor(after, "timeline", {"session_id": session_id}, int)
    body, last = await timeline_of(services.pool, place, found[0] if found else 0, limit)
    following = None if last is None else write_cursor("timeline", {"session_id": session_id}, last)
    return Response(body.finish(following), media_type="application/json")


@router.get("/sessions/{session_id}/at/{seq}", response_model=SessionAt)
@needs(AccountRole.VIEWER)
async def get_session_at(
    services: Serving,
    session_id: SessionName,
    seq: Annotated[int, Path(ge=0, le=_LARGEST_SEQ, description="Position in the log of the session's shard.")],
) -> SessionAt:
    """Return the session after the input that an entry belongs to."""
    found = await session_at(services, session_id, seq)
    if found is None:
        raise not_found(f"session {session_id!r}", "`GET /sessions` lists them", "session_id")
    return found

"""Routes of the log itself: checkpoints, and the live stream."""

from typing import Annotated

from fastapi import APIRouter, Header, Path, Query, Request, Response
from sse_starlette import EventSourceResponse

from apc_web.access.caller import caller
from apc_web.access.route_roles import RoleRoute
from apc_web.live.streaming import stream
from apc_web.models.log import (
    CheckpointList,
    ConsistencyProof,
    LogVerification,
    ServerAbout,
    StreamEntries,
    StreamReset,
    StreamState,
)
from apc_web.parameters import OfRun, OfSession
from apc_web.reading.shards import about, checkpoint_list
from apc_web.route_services import Serving
from apc_web.verifying.proof_files import consistency_of
from apc_web.verifying.verifier import verifier_of

router = APIRouter(tags=["log"], route_class=RoleRoute)
_LARGEST_SHARD = (1 << 31) - 1
_LARGEST = (1 << 53) - 1
_EVENTS = (
    "Events `entries` (StreamEntries), `reset` (StreamReset), `state` (StreamState: the database goes or comes) and "
    "comments every 15 s; `id` lists the shards' heads."
)


@router.get("/about", response_model=ServerAbout)
async def get_about(services: Serving) -> ServerAbout:
    """Return what this server is, and what the caller may do."""
    return await about(services)


@router.get("/log/checkpoints", response_model=CheckpointList)
async def list_checkpoints(services: Serving) -> CheckpointList:
    """Return heads, newest checkpoints and exports, by shard."""
    return await checkpoint_list(services.pool)


@router.get("/log/checkpoints/{shard}/consistency", response_model=ConsistencyProof)
async def get_consistency(
    services: Serving,
    shard: Annotated[int, Path(ge=0, le=_LARGEST_SHARD)],
    *,
    old: Annotated[
        int | None,
        Query(ge=1, le=_LARGEST, description="Entries of the earlier checkpoint; default: the exported one."),
    ] = None,
    new: Annotated[
        int | None, Query(ge=1, le=_LARGEST, description="Entries of the later checkpoint; default: the newest one.")
    ] = None,
) -> ConsistencyProof:
    """Return the proof that the log only grew between two checkpoints, as `apc log check` reads it."""
    return await consistency_of(services, shard, old, new)


@router.get("/log/verify", response_model=LogVerification)
async def get_verification(services: Serving) -> LogVerification:
    """Return the verification that runs, or the last one since the server started."""
    return verifier_of(services.verifier).job


@router.post("/log/verify", response_model=LogVerification)
async def start_verification(services: Serving) -> LogVerification:
    """Start a verification of the whole log in a separate process; one at a time."""
    return await verifier_of(services.verifier).start(caller().name)


@router.delete("/log/verify", response_model=LogVerification)
async def cancel_verification(services: Serving) -> LogVerification:
    """End the verification that runs; without one nothing happens."""
    return await verifier_of(services.verifier).cancel()


@router.get(
    "/stream",
    response_class=EventSourceResponse,
    responses={
        200: {
            "description": _EVENTS,
            "content": {"text/event-stream": {}},
            "model": StreamEntries | StreamReset | StreamState,
        }
    },
)
async def get_stream(
    services: Serving,
    request: Request,
    session_id: OfSession = None,
    run_id: OfRun = None,
    since: Annotated[
        str | None, Query(max_length=20_000, description="Where to begin, as an event's `id`; default: the end.")
    ] = None,
    last_event_id: Annotated[str | None, Header(max_length=20_000)] = None,
) -> Response:
    """Stream new entries of a session, of a run, or of everything, as server-sent events."""
    return await stream(services, request, last_event_id or since, session_id=session_id, run_id=run_id)

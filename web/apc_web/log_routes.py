"""The log itself over HTTP: heads, checkpoints, proofs, its verification, the live stream, and this server."""

from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import version
from typing import Annotated

import orjson
from fastapi import APIRouter, Header, Path, Query, Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from apc_bus.database import DATABASE_AWAY
from apc_log.offline_verifier import PublicKey
from apc_log.queries.health import ShardEnd, list_shard_ends
from apc_log.queries.session_pages import page_of_sessions
from apc_web.access import AccountRole, caller
from apc_web.cursors import LARGEST_SEQ, LARGEST_SHARD, OfRun, OfSession
from apc_web.errors import invalid
from apc_web.live import EventKey, SeatedStream
from apc_web.models import (
    CheckpointList,
    ConsistencyProof,
    FoldEntry,
    LogVerification,
    ServerAbout,
    ShardCheckpoint,
    StreamEntries,
    StreamReset,
    StreamState,
)
from apc_web.packets import InclusionProof, consistency_of, entry_proof_of
from apc_web.roles import RoleRoute, narrowed, needs
from apc_web.route_services import Reading, Services, Serving
from apc_web.verification_job import verifier_of


async def checkpoint_list(reading: Reading) -> CheckpointList:
    """Return heads, newest checkpoints and exports, by shard."""
    rows = await list_shard_ends(reading.pool)
    return CheckpointList(items=[_checkpoint(row, reading.key_of(row.shard)) for row in rows])


async def about(services: Services) -> ServerAbout:
    """Return what this server is, and what the caller may do."""
    who = caller()
    is_operator = who.role.includes(AccountRole.OPERATOR)
    no_role = None if is_operator else f"this needs the role operator; yours is {who.role}"
    no_acts = no_role if services.acts is not None else services.why_no_acts or "this server has no acts"
    if services.acts is not None and is_operator:
        no_acts = await services.acts.why_not(who.person)
    return ServerAbout(
        version=version("apc-bus"),
        can_act=no_acts is None,
        why_not=no_acts,
        can_chat=services.chats is not None and is_operator,
        why_no_chat=services.why_no_chat if services.chats is None else no_role,
        user=who.name,
        role=who.role,
        has_accounts=services.accounts is not None,
        database="embedded" if services.is_embedded else "server",
        run_id=services.run_id,
    )


def _checkpoint(row: ShardEnd, key: PublicKey | None) -> ShardCheckpoint:
    root_hash = None if row.root_hash is None else b64encode(row.root_hash).decode()
    return ShardCheckpoint.of(row, root_hash=root_hash, public_key=None if key is None else str(key))


# One stream: entries behind a position as server-sent events; the id of each event lists the heads it ends at.

Heads = dict[int, int]
"""Shard -> last seq."""
MOST_BEHIND = 20_000
"""Entries that a stream catches up with; a client that is further behind gets `reset`."""
_STEP = 500
"""Entries of one event."""
_PATIENCE_SECONDS = 15.0
"""How long a stream waits at a time for the log to grow or the database to come and go."""
_PING_SECONDS = 15
_MOST_SHARDS = 1_024
_MOST_OF_RUN = 1_000
"""Sessions of a run that are looked up at the beginning of its stream."""


async def stream(
    services: Services, request: Request, since: str | None, *, session_id: str | None, run_id: str | None
) -> Response:
    """Return the stream of new entries of a session, of a run, or of everything.

    Raises ApiError for a position that cannot be used, and when too many streams are open; errors of the database.
    """
    begin = None if since is None else _read_heads(since)
    await services.feed.look()
    narrowed = _Narrowed(services, session_id, run_id)
    events = _events(services, narrowed, begin)
    options = {"ping": _PING_SECONDS, "send_timeout": 30, "headers": {"Cache-Control": "no-store"}}
    return SeatedStream(services.feed.seats, caller().name, events, **options)


class _Narrowed:
    """Which entries a stream wants. The sessions of a run are looked up as they appear."""

    @property
    def is_shared(self) -> bool:
        """Whether streams with one wish get the same events; one of a run learns its sessions as it goes."""
        return self._run_id is None

    @property
    def session_id(self) -> str | None:
        """The session that is wanted; None = everything."""
        return self._session_id

    def __init__(self, services: Services, session_id: str | None, run_id: str | None) -> None:
        self._services = services
        self._session_id = session_id
        self._run_id = run_id
        self._has_looked = False
        self._sessions: set[str] = set() if session_id is None else {session_id}

    async def narrowed(self, entries: Sequence[FoldEntry]) -> list[FoldEntry]:
        if self._session_id is None and self._run_id is None:
            return list(entries)
        if self._run_id is not None:
            self._sessions |= {one.session_id for one in entries if one.run_id == self._run_id}
            if not self._has_looked:
                self._has_looked = True
                rows = await page_of_sessions(self._services.pool, run_id=self._run_id, limit=_MOST_OF_RUN)
                self._sessions |= {row.session_id for row in rows}
        return [one for one in entries if one.session_id in self._sessions]


async def _events(services: Services, narrowed: _Narrowed, begin: Heads | None) -> AsyncIterator[bytes]:
    feed = services.feed
    async with feed.opened():
        seen = feed.ends if begin is None else {shard: begin.get(shard, 0) for shard in feed.ends} | begin
        if _is_too_far(seen, feed.ends):
            seen = feed.ends
            yield _event("reset", StreamReset(heads=_named(seen)), seen)
        else:
            yield _event("entries", StreamEntries(heads=_named(seen), items=[]), seen)
        is_away = False
        while True:
            if not await feed.until_changed(seen, was_away=is_away, patience=_PATIENCE_SECONDS):
                continue
            if feed.is_away != is_away:
                is_away = feed.is_away
                yield _event("state", StreamState(is_readable=not is_away), seen)
                continue
            heads = feed.ends
            if _is_too_far(seen, heads):
                seen = heads
                yield _event("reset", StreamReset(heads=_named(seen)), seen)
                continue
            try:
                async for event, reached in _steps(services, narrowed, seen, heads):
                    seen = reached
                    if event:
                        yield event
            except DATABASE_AWAY:
                continue  # the feed waits for the database; what was not sent is read again


async def _steps(
    services: Services, narrowed: _Narrowed, seen: Heads, heads: Heads
) -> AsyncIterator[tuple[bytes, Heads]]:
    """Yield new entries shard by shard, at most 500 at a time: an event, empty if none is wanted, and where it ends."""
    reached = dict(seen)
    for shard, last in sorted(heads.items()):
        after = reached.get(shard, 0)
        while after < last:
            upto = min(after + _STEP, last)
            reached[shard] = upto
            yield await _step(services, narrowed, (shard, after, upto), reached), dict(reached)
            after = upto


async def _step(services: Services, narrowed: _Narrowed, part: tuple[int, int, int], reached: Heads) -> bytes:
    """Return the event of a range of entries: the first stream that needs it writes it, the others send its bytes."""
    written = services.feed.written
    is_viewer = caller().role is AccountRole.VIEWER
    key = EventKey(narrowed.session_id, is_viewer, part, tuple(sorted(reached.items()))) if narrowed.is_shared else None
    if (found := written.get(key)) is not None:
        return found
    items = await narrowed.narrowed(await services.feed.entries(*part))
    if (found := written.get(key)) is not None:
        return found
    event = _event("entries", StreamEntries(heads=_named(reached), items=items), reached) if items else b""
    written.keep(key, event)
    return event


def _is_too_far(seen: Heads, heads: Heads) -> bool:
    """Return whether a client is too far behind, or ahead of a log that is another one."""
    behind = sum(max(last - seen.get(shard, 0), 0) for shard, last in heads.items())
    return behind > MOST_BEHIND or any(seq > heads.get(shard, 0) for shard, seq in seen.items())


def _event(name: str, data: StreamEntries | StreamReset | StreamState, heads: Heads) -> bytes:
    if caller().role is AccountRole.VIEWER:
        data = narrowed(data)
    return ServerSentEvent(data.model_dump_json(), event=name, id=orjson.dumps(_named(heads)).decode()).encode()


def _named(heads: Heads) -> dict[str, int]:
    return {str(shard): heads[shard] for shard in sorted(heads)}


def _read_heads(text: str) -> Heads:
    """Return the heads of an event's id. Raises ApiError for anything else."""
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or len(document) > _MOST_SHARDS or not all(map(_is_head, document.items())):
        raise invalid("since", "this is no id of an event of this stream: take the last `id`, or leave it out")
    return {int(shard): seq for shard, seq in document.items()}


def _is_head(item: tuple[str, object]) -> bool:
    shard, seq = item
    return shard.isascii() and shard.isdecimal() and len(shard) < 10 and type(seq) is int and 0 <= seq <= LARGEST_SEQ


# Routes.

router = APIRouter(tags=["log"], route_class=RoleRoute)
_LARGEST = (1 << 53) - 1
"""The largest whole number that a browser reads from JSON without loss."""
_EVENTS = (
    "Events `entries` (StreamEntries), `reset` (StreamReset), `state` (StreamState: the database goes or comes) and "
    "comments every 15 s; `id` lists the shards' heads."
)


@router.get("/about", response_model=ServerAbout)
@needs(AccountRole.VIEWER)
async def get_about(services: Serving) -> ServerAbout:
    """Return what this server is, and what the caller may do."""
    return await about(services)


@router.get("/log/checkpoints", response_model=CheckpointList)
@needs(AccountRole.VIEWER)
async def list_checkpoints(services: Serving) -> CheckpointList:
    """Return heads, newest checkpoints and exports, by shard."""
    return await checkpoint_list(services)


@router.get("/log/entries/{shard}/{seq}/proof", response_model=InclusionProof, response_model_exclude_unset=True)
@needs(AccountRole.READER)
async def get_entry_proof(
    services: Serving,
    shard: Annotated[int, Path(ge=0, le=LARGEST_SHARD)],
    seq: Annotated[int, Path(ge=1, le=_LARGEST)],
) -> InclusionProof:
    """Return the proof that an entry of any kind is in the log, as `apc log check` reads it."""
    return await entry_proof_of(services, shard, seq)


@router.get("/log/checkpoints/{shard}/consistency", response_model=ConsistencyProof)
@needs(AccountRole.READER)
async def get_consistency(
    services: Serving,
    shard: Annotated[int, Path(ge=0, le=LARGEST_SHARD)],
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
@needs(AccountRole.READER)
async def get_verification(services: Serving) -> LogVerification:
    """Return the verification that runs, or the last one since the server started."""
    return verifier_of(services.verifier).job


@router.post("/log/verify", response_model=LogVerification)
@needs(AccountRole.OPERATOR)
async def start_verification(services: Serving) -> LogVerification:
    """Start a verification of the whole log in a separate process; one at a time."""
    return await verifier_of(services.verifier).start(caller().name)


@router.delete("/log/verify", response_model=LogVerification)
@needs(AccountRole.OPERATOR)
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
@needs(AccountRole.VIEWER)
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

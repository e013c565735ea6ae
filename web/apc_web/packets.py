"""Packets as the API returns them: pages of them, one with everything that the log has on it, proofs, and routes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import asyncpg
from fastapi import APIRouter, Path, Query, Response

from apc_bus.settings import ArchiveSettings
from apc_contracts.content import natural_text
from apc_contracts.vocabulary import PacketType, RunPhase
from apc_log.body_encryption import is_sealed
from apc_log.errors import ArchiveUnavailable
from apc_log.offline_verifier import PublicKey
from apc_log.queries import get_packet_impact, get_packet_tree, list_agent_packets
from apc_log.queries.health import list_shard_ends
from apc_log.queries.packet_pages import (
    SCOPES,
    UNINDEXED,
    PacketLine,
    links_above,
    links_below,
    packet_at,
    page_of_packets,
    places_of_packets,
    search_packets,
    sessions_of_packet,
    stored_body,
)
from apc_log.queries.packets import Position, list_packet_events, stale_packets
from apc_log.session_loading import contract_of_session
from apc_persister.errors import ProofImpossible
from apc_persister.evidence.documents import prove_consistency, prove_entry
from apc_web.access import AccountRole
from apc_web.contents import Said, SchemaDocument, Spoken, document_of, payload_of, said_at, spoken
from apc_web.cursors import (
    LARGEST_SEQ,
    LARGEST_SHARD,
    After,
    Code,
    InSession,
    Limit,
    OfRun,
    OfSession,
    OfTask,
    Order,
    PacketName,
    read_cursor,
    write_cursor,
)
from apc_web.errors import ApiError, invalid, not_found
from apc_web.evidence import EvidenceAnswer, evidence_of
from apc_web.models import NEXT, ApiModel, ConsistencyProof, LogPlace, Sender, Shown, column
from apc_web.roles import RoleRoute, needs
from apc_web.route_services import Reading, Serving
from apc_web.runs import SessionMachine
from apc_web.sessions import PACKET_MACHINE, machine_of
from apc_web.verdict_words import VerdictWords, ruling_of


class PacketSummary(Spoken):
    """One packet in a list."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    session_id: Shown[str]
    run_id: Shown[str]
    task_id: Shown[str]
    run_phase: Shown[str]
    round: Shown[int]
    generation: Shown[int]
    step: Shown[int]
    sender: Shown[Sender]
    sender_role: Shown[str]
    sender_swarm: Annotated[Shown[str], column("sender_swarm", "sender_swarm_id")]
    recipients: Shown[list[str]]
    judged_at: Shown[datetime]
    verdict: Shown[str]
    """accepted, refused or held; of a packet that was held the verdict that it got later."""
    refusal_code: Shown[str | None]
    state: Shown[str]
    """The state of its lifecycle over all its recipients."""
    parent_packet_id: Shown[UUID | None]
    cause_packet_id: Shown[UUID | None]
    is_stale: Shown[bool]
    """It rests on a retracted packet."""


class PacketPage(ApiModel):
    """Packets in the order of the log, oldest first unless `order=newest`."""

    items: Shown[list[PacketSummary]]
    next: Shown[str | None] = NEXT
    looked_at: Shown[int | None] = None
    """Of a text search: how many packets it looked at."""
    is_complete: Shown[bool] = True
    """Of a text search: false when it stopped at its limit; `next` goes on from there."""


class PacketHop(ApiModel):
    """One step of a packet's lifecycle."""

    seq: Shown[int]
    recipient: Shown[str]
    """'' is the whole packet."""
    attempt: Shown[int]
    event: Shown[str]
    from_state: Shown[str]
    to_state: Shown[str]
    at: Annotated[Shown[datetime], column("at", "occurred_at")]
    actor: Shown[str]
    metadata: dict[str, Any] | None


class PacketLink(Spoken):
    """A neighbour in the causal graph."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[Sender]
    verdict: Shown[str]
    edge: Shown[str]
    """cause or parent."""


class PacketDetail(PacketSummary):
    """One packet with everything that the log has on it."""

    root_packet_id: Shown[UUID]
    channel: Shown[str]
    confidence: Shown[float]
    created_at: Shown[datetime]
    expires_at: Shown[datetime]
    recorded_at: Shown[datetime]
    ruling: Shown[VerdictWords]
    facts: dict[str, Any]
    """What the rules read when it was judged."""
    document: dict[str, Any] | None
    """The packet as JSON; null when its body is sealed or cannot be read."""
    is_sealed: Shown[bool]
    """The body is encrypted: this server has no key."""
    said: str
    """What it says in its own words, with line breaks; '' of typed data, which is fields."""
    body_bytes: Shown[int]
    packet_hash: Shown[str]
    user_id: Shown[str]
    """The broker's user who published it."""
    has_signature: Shown[bool]
    hops: Shown[list[PacketHop]]
    lifecycle: Shown[SessionMachine]
    """The machine of its session's contract that it moves through, once for each recipient."""
    causes: Shown[list[PacketLink]]
    """Its cause and its parent."""
    effects: Shown[list[PacketLink]]
    """What followed from it, at most 100."""
    stale_because: Shown[UUID | None]
    other_sessions: Shown[list[str]]
    """Sessions with another packet of this id; name one with `?session=`."""


class TreeNode(Spoken):
    """A packet of a causal tree."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[Sender]
    recipients: Shown[list[str]]
    run_phase: Shown[str]
    generation: Shown[int]
    verdict: Shown[str]
    refusal_code: Shown[str | None]
    judged_at: Shown[datetime]
    above: Shown[UUID | None]
    """The packet that it stands under; null for the root."""
    edge: Shown[str | None]
    """Why: cause or parent."""
    depth: Shown[int]
    """0 for the root."""


class CausalTree(ApiModel):
    """What a packet has caused: the root first, every packet after the one that it stands under."""

    items: Shown[list[TreeNode]]
    is_cut: Shown[bool]
    """There is more than `limit`."""


class RestingPacket(Spoken):
    """A packet that rests on another."""

    shard: Shown[int]
    seq: Shown[int]
    packet_id: Shown[UUID]
    packet_type: Shown[str]
    sender: Shown[Sender]
    run_phase: Shown[str]
    round: Shown[int]
    generation: Shown[int]
    judged_at: Shown[datetime]
    is_stale: Shown[bool]
    is_retracted: Shown[bool]


class ImpactAnswer(ApiModel):
    """What rests on a packet, transitively, in the order of the log; at most `limit`."""

    packet: Shown[LogPlace]
    items: Shown[list[RestingPacket]]
    total: Shown[int]


class InclusionProof(ApiModel):
    """The file that `apc log prove` writes and `apc log check` verifies (docs/reference/log-format.md).

    Leaf hash: SHA-256 of 0x00 and the UTF-8 bytes of `entry`. Node: SHA-256 of 0x01, left, right.
    """

    format: str
    version: int
    checkpoint: str
    """A signed-note: origin, size, root in base64; empty line; signature lines."""
    key: str
    """The log's public key as this server knows it; compare it with a pinned one."""
    entry: str
    """The canonical JSON of the entry, an array that begins with its kind."""
    path: list[str]
    """Hashes in hex, from the leaf up."""
    body: str | None = None
    """The stored bytes in base64; null when they were erased."""


# Pages of packets: filters that are safe for a large log, and text search with a limit.

_SEARCHED = 20_000
"""Packets that one search looks at."""
_SEARCH_SECONDS = 2.0
_STEP = 1_000
"""Packets of one statement, so that a search can stop between two."""


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
        """What binds a cursor to this query."""
        return {**self.given, "text": self.text, "newest": self.newest}


async def packets_page(reading: Reading, query: PacketQuery, after: str | None, limit: int) -> PacketPage:
    """Return one page of packets, each with what it says. Raises ApiError for a bad cursor."""
    page = await _page(reading.pool, query, after, limit)
    said = await said_at(reading.pool, reading.schemas, page.items)
    return page.model_copy(update={"items": spoken(PacketSummary, page.items, said)})


async def _page(pool: asyncpg.Pool, query: PacketQuery, after: str | None, limit: int) -> PacketPage:
    last = read_cursor(after, "packets", query.filters, int, int)
    place = None if last is None else _position(last)
    if query.text is not None:
        return await _search(pool, query, query.text, place, limit)
    rows = await page_of_packets(pool, query.given, newest=query.newest, after=place, limit=limit + 1)
    shown = rows[:limit]
    cursor = _cursor(query, shown[-1].shard, shown[-1].seq) if len(rows) > limit else None
    return PacketPage.of(items=shown, next=cursor)


async def _search(pool: asyncpg.Pool, query: PacketQuery, text: str, place: Position | None, limit: int) -> PacketPage:
    lines: list[PacketLine] = []
    looked_at, until = 0, asyncio.get_running_loop().time() + _SEARCH_SECONDS
    while True:
        step = await search_packets(pool, query.given, text, newest=query.newest, after=place, look_at=_STEP)
        looked_at += step.looked_at
        if len(lines) + len(step.found) > limit:  # go on behind the last one that is shown
            shown = (lines + step.found)[:limit]
            place = Position(shown[-1].shard, shown[-1].seq)
            return _found(query, shown, place, looked_at, is_complete=True)
        lines += step.found
        place = step.last or place
        if step.looked_at < _STEP:
            return _found(query, lines, None, looked_at, is_complete=True)
        if looked_at >= _SEARCHED or asyncio.get_running_loop().time() > until:
            return _found(query, lines, place, looked_at, is_complete=False)


def _found(
    query: PacketQuery, rows: list[PacketLine], place: Position | None, looked_at: int, *, is_complete: bool
) -> PacketPage:
    cursor = None if place is None else _cursor(query, *place)
    return PacketPage.of(items=rows, next=cursor, looked_at=looked_at, is_complete=is_complete)


def _cursor(query: PacketQuery, shard: int, seq: int) -> str:
    return write_cursor("packets", query.filters, shard, seq)


def _position(values: list[Any]) -> Position:
    shard, seq = values
    return Position(max(min(shard, LARGEST_SHARD), -1), seq)


# One packet with everything that the log has on it, and what follows from it.

_HINT = "take an id that `GET /packets` lists"


@dataclass(frozen=True, slots=True)
class PacketKey:
    """Which packet is meant: ids are unique within a session."""

    packet_id: UUID
    session_id: str


async def find_key(reading: Reading, name: str, session: str | None) -> PacketKey:
    """Return the packet that a name means; of several sessions the oldest. Raises ApiError when there is none."""
    shard, _, seq = name.partition("-")
    if seq.isdecimal() and name.count("-") == 1:
        if int(shard) > LARGEST_SHARD or int(seq) > LARGEST_SEQ:
            raise not_found(f"packet at {name}", _HINT, "packet_id")
        ids = await packet_at(reading.pool, Position(int(shard), int(seq)))
        if ids is None or session not in (None, ids[1]):
            raise not_found(f"packet at {name}", _HINT, "packet_id")
        return PacketKey(*ids)
    packet_id = UUID(name)
    sessions = await sessions_of_packet(reading.pool, packet_id)
    named = [one for one in sessions if session in (None, one)]
    if not named:
        raise not_found(f"packet {packet_id}", _HINT, "packet_id")
    return PacketKey(packet_id, named[0])


async def packet_detail(reading: Reading, name: str, session: str | None) -> PacketDetail:
    """Return one packet. Raises ApiError when there is none."""
    pool = reading.pool
    key = await find_key(reading, name, session)
    row = (await list_agent_packets(pool, packet_id=key.packet_id, session_id=key.session_id, limit=1))[0]
    line = (
        await page_of_packets(
            pool, {"session_id": key.session_id}, newest=False, after=Position(row.shard, row.seq - 1), limit=1
        )
    )[0]
    hops = await list_packet_events(pool, key.packet_id, session_id=key.session_id)
    stale = (await stale_packets(pool, [row])).get((key.session_id, key.packet_id))
    causes = await links_above(pool, key.session_id, key.packet_id)
    effects = await links_below(pool, key.session_id, key.packet_id)
    said = await said_at(pool, reading.schemas, [row, *causes, *effects])
    own, document = said.get(row.position, Said()), document_of(row.body)
    contract = await contract_of_session(pool, row.contract_hash.hex(), reading.contract)
    return PacketDetail.of(
        line,
        row,
        ruling=ruling_of(row, hops),
        line=own.line,
        body=own.body,
        said="" if document is None else natural_text(row.packet_type, payload_of(row.body) or {}),
        document=document,
        is_sealed=is_sealed(row.body),
        body_bytes=len(row.body),
        packet_hash=row.packet_hash.hex(),
        has_signature=row.signature is not None,
        hops=hops,
        lifecycle=machine_of(contract, PACKET_MACHINE),
        causes=spoken(PacketLink, causes, said),
        effects=spoken(PacketLink, effects, said),
        stale_because=None if stale is None else stale.because_packet_id,
        other_sessions=[one for one in await sessions_of_packet(pool, key.packet_id) if one != key.session_id],
    )


async def packet_body(reading: Reading, name: str, session: str | None) -> bytes:
    """Return the bytes of a packet as they are stored. Raises ApiError when there is none."""
    key = await find_key(reading, name, session)
    body = await stored_body(reading.pool, key.session_id, key.packet_id)
    if body is None:
        raise not_found(f"packet {key.packet_id}", _HINT, "packet_id")
    return body


async def causal_tree(reading: Reading, name: str, session: str | None, limit: int) -> CausalTree:
    """Return what a packet has caused. Raises ApiError when there is none."""
    key = await find_key(reading, name, session)
    tree = await get_packet_tree(reading.pool, key.packet_id, session_id=key.session_id, limit=limit)
    if tree is None:
        raise not_found(f"packet {key.packet_id}", _HINT, "packet_id")
    said = await said_at(reading.pool, reading.schemas, tree.rows)
    depths: dict[UUID, int] = {}
    nodes = []
    for row in tree.rows:
        depths[row.packet_id] = 0 if row.above is None else depths[row.above] + 1
        nodes.append(TreeNode.of(said.get(Position(row.shard, row.seq), Said()), row, depth=depths[row.packet_id]))
    return CausalTree(items=nodes, is_cut=tree.is_cut)


async def impact_of(reading: Reading, name: str, session: str | None, limit: int) -> ImpactAnswer:
    """Return what rests on a packet. Raises ApiError when there is none."""
    key = await find_key(reading, name, session)
    rests_on_nothing = reading.contract.retraction.rests_on_nothing
    impact = await get_packet_impact(
        reading.pool, key.packet_id, session_id=key.session_id, rests_on_nothing=rests_on_nothing
    )
    if impact is None:
        raise not_found(f"packet {key.packet_id}", _HINT, "packet_id")
    resting = impact.resting[:limit]
    said = await said_at(reading.pool, reading.schemas, resting)
    return ImpactAnswer.of(impact, items=spoken(RestingPacket, resting, said), total=len(impact.resting))


# Proofs as files: that a packet is in the log, and that the log extends an earlier checkpoint of it.


async def proof_of(reading: Reading, name: str, session: str | None) -> InclusionProof:
    """Return the proof that a packet is in the log. Raises ApiError, ProofImpossible, TreeBroken."""
    key = await find_key(reading, name, session)
    places = await places_of_packets(reading.pool, key.session_id, [key.packet_id])
    if key.packet_id not in places:
        raise ProofImpossible(f"the log holds no packet {key.packet_id}")
    return await _proof(reading, *places[key.packet_id])


async def entry_proof_of(reading: Reading, shard: int, seq: int) -> InclusionProof:
    """Return the proof that an entry of any kind is in the log. Raises ApiError, ProofImpossible, TreeBroken."""
    if all(one.shard != shard for one in await list_shard_ends(reading.pool)):
        raise not_found(f"shard {shard}", "take one that `GET /log/checkpoints` lists", "shard")
    return await _proof(reading, shard, seq)


async def _proof(reading: Reading, shard: int, seq: int) -> InclusionProof:
    """Prove an entry from the database, or from the archive if it was released and APC_ARCHIVE_URL names one."""
    key = _key(reading, shard)
    try:
        async with reading.pool.acquire() as connection:
            document = await prove_entry(connection, key, shard, seq)
    except ArchiveUnavailable:
        settings = ArchiveSettings()
        if settings.archive_url is None:
            raise
        from apc_log.archive import Archive  # loads an object store
        from apc_log.cold import prove_cold

        document = await prove_cold(Archive.open(settings, key.name.rpartition("/")[0]), key, seq)
    return InclusionProof.model_validate(document)


async def consistency_of(reading: Reading, shard: int, old: int | None, new: int | None) -> ConsistencyProof:
    """Return the proof that the log of a shard extends an earlier one.

    By default the newest checkpoint extends the exported one. Raises ApiError, ProofImpossible, TreeBroken.
    """
    end = next((one for one in await list_shard_ends(reading.pool) if one.shard == shard), None)
    if end is None:
        raise not_found(f"shard {shard}", "take one that `GET /log/checkpoints` lists", "shard")
    first, last = old or end.exported, new or end.tree_size
    if not first or last is None:  # 0: an export has begun
        raise ApiError(409, "NO_CHECKPOINT", "no checkpoint was exported yet: name an `old` size", "old")
    async with reading.pool.acquire() as connection:
        document = await prove_consistency(connection, _key(reading, shard), shard, first, last)
    return ConsistencyProof.model_validate(document)


def _key(reading: Reading, shard: int) -> PublicKey:
    key = reading.key_of(shard)
    if key is None:
        words = "this server does not know the log's public key: set APC_LOG_KEY_FILE, or use `apc log prove --key`"
        raise ApiError(409, "NO_LOG_KEY", words)
    return key


# Routes.

router = APIRouter(tags=["packets"], route_class=RoleRoute)
_NAME = r"^[^\x00]{1,256}$"
_UUID = r"^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"
_MOST = 2_147_483_647


@router.get("/packets", response_model=PacketPage)
@needs(AccountRole.VIEWER)
async def list_packets(
    services: Serving,
    *,
    run_id: OfRun = None,
    session_id: OfSession = None,
    task_id: OfTask = None,
    packet_type: Annotated[PacketType | None, Query(description="Only of this type.")] = None,
    run_phase: Annotated[RunPhase | None, Query(description="Only of this phase.")] = None,
    trace_id: Annotated[str | None, Query(pattern=_UUID, description="Only of the chain of this root packet.")] = None,
    sender: Annotated[str | None, Query(pattern=_NAME, description="Only of this agent. Needs a scope.")] = None,
    recipient: Annotated[str | None, Query(pattern=_NAME, description="Only for this agent. Needs a scope.")] = None,
    verdict: Annotated[
        Literal["accepted", "refused", "held"] | None, Query(description="Only with this verdict. Needs a scope.")
    ] = None,
    refusal_code: Code = None,
    generation: Annotated[int | None, Query(ge=0, le=_MOST, description="Needs a scope.")] = None,
    round: Annotated[int | None, Query(ge=0, le=_MOST, description="Needs a scope.")] = None,
    text: Annotated[
        str | None, Query(min_length=2, max_length=200, pattern=_NAME, description="Only with this text in the packet.")
    ] = None,
    order: Order = "oldest",
    after: After = None,
    limit: Limit = 100,
) -> PacketPage:
    """Return packets that match every filter.

    A filter that needs a scope wants `run_id`, `session_id` or `task_id` beside it. A search looks at 20,000 packets
    or for 2 s at most, says when it stopped, and goes on from `next`.
    """
    given = {
        "run_id": run_id,
        "session_id": session_id,
        "task_id": task_id,
        "packet_type": packet_type,
        "run_phase": run_phase,
        "trace_id": trace_id,
        "sender": sender,
        "recipient": recipient,
        "verdict": verdict,
        "refusal_code": refusal_code,
        "generation": generation,
        "round": round,
    }
    query = PacketQuery.of(given, text=text, newest=order == "newest")
    return await packets_page(services, query, after, limit)


@router.get("/packets/{packet_id}", response_model=PacketDetail)
@needs(AccountRole.VIEWER)
async def get_packet(services: Serving, packet_id: PacketName, session: InSession = None) -> PacketDetail:
    """Return one packet with its verdict in words, the facts it was judged by, hops, causes and effects."""
    return await packet_detail(services, packet_id, session)


@router.get(
    "/packets/{packet_id}/body",
    response_class=Response,
    responses={200: {"content": {"application/octet-stream": {}}, "description": "The stored bytes."}},
)
@needs(AccountRole.READER)
async def get_body(services: Serving, packet_id: PacketName, session: InSession = None) -> Response:
    """Return the bytes of a packet exactly as they are stored; encrypted ones stay encrypted."""
    body = await packet_body(services, packet_id, session)
    headers = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff"}
    return Response(body, media_type="application/octet-stream", headers=headers)


@router.get("/packets/{packet_id}/evidence", response_model=EvidenceAnswer)
@needs(AccountRole.VIEWER)
async def get_evidence(services: Serving, packet_id: PacketName, session: InSession = None) -> EvidenceAnswer:
    """Return what a packet rests on: packets that it cites or answers, artifacts, approvals, effects."""
    key = await find_key(services, packet_id, session)
    found = await evidence_of(services, key.packet_id, key.session_id)
    if found is None:
        raise not_found(f"packet {key.packet_id}", _HINT, "packet_id")
    return found


@router.get("/schemas/{name}/{version}", response_model=SchemaDocument)
@needs(AccountRole.READER)
async def get_schema(
    services: Serving,
    name: Annotated[str, Path(pattern=r"^[A-Za-z][A-Za-z0-9._-]{0,63}$", description="As in `finding/1`.")],
    version: Annotated[int, Path(ge=1, le=999_999_999, description="Its version.")],
) -> SchemaDocument:
    """Return the JSON Schema of typed content: titles, kinds, and the order of its fields."""
    schema_id = f"{name}/{version}"
    found = (await services.schemas.of(services.pool, [schema_id])).get(schema_id)
    if found is None:
        raise not_found(f"schema {schema_id}", "`apc schema list` lists them", "name")
    return SchemaDocument(schema_id=schema_id, document=dict(found.document))


@router.get("/packets/{packet_id}/tree", response_model=CausalTree)
@needs(AccountRole.VIEWER)
async def get_tree(
    services: Serving,
    packet_id: PacketName,
    session: InSession = None,
    limit: Annotated[int, Query(ge=1, le=2_000, description="At most this many packets.")] = 300,
) -> CausalTree:
    """Return what a packet has caused, level by level."""
    return await causal_tree(services, packet_id, session, limit)


@router.get("/packets/{packet_id}/impact", response_model=ImpactAnswer)
@needs(AccountRole.VIEWER)
async def get_impact(
    services: Serving,
    packet_id: PacketName,
    session: InSession = None,
    limit: Annotated[int, Query(ge=1, le=2_000, description="At most this many packets.")] = 500,
) -> ImpactAnswer:
    """Return what rests on a packet: what its retraction would mark stale."""
    return await impact_of(services, packet_id, session, limit)


@router.get("/packets/{packet_id}/proof", response_model=InclusionProof)
@needs(AccountRole.READER)
async def get_proof(services: Serving, packet_id: PacketName, session: InSession = None) -> InclusionProof:
    """Return the proof that the packet is in the log, as `apc log check` reads it."""
    return await proof_of(services, packet_id, session)

"""Packets as the API returns them; verdicts and dead letters in words; pages of packets."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import asyncpg

from apc_contracts.judging.verdict import remedy_of
from apc_log.queries import PacketRow, TransitionRow
from apc_log.queries.packet_pages import SCOPES, UNINDEXED, PacketLine, page_of_packets, search_packets
from apc_log.queries.packets import Position
from apc_web.cursors import read_cursor, write_cursor
from apc_web.errors import invalid
from apc_web.models import NEXT, ApiModel, LogPlace, Sender, Shown, column
from apc_web.runs import SessionMachine


class PacketSummary(ApiModel):
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


class VerdictWords(ApiModel):
    """The verdict and why."""

    verdict: Shown[str]
    code: Shown[str | None]
    rule: Shown[str | None]
    path: str | None
    """Place in the packet."""
    message: str | None
    """What the gate told the sender."""
    words: Shown[str]
    """What the verdict means, one sentence."""
    remedy: Shown[str | None]
    """What would have let it pass."""
    retry_after_ms: Shown[int | None]
    judged_at: Shown[datetime]
    contract_hash: Shown[str]


class PacketLink(ApiModel):
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


class TreeNode(ApiModel):
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


class RestingPacket(ApiModel):
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


# The cause of each refusal code, as docs/reference/refusals.md has it; a test compares the two.

CAUSES: Mapping[str, str] = {
    "TOO_LARGE": (
        "the body is larger than 256 KiB, a SessionSpec has more than 256 swarms, or a list in the packet is "
        "too long (limits.list_items, limits.parents)"
    ),
    "TOO_DEEP": "more than 32 levels of nesting, or more than 20,000 nodes",
    "MALFORMED": "the body is not JSON in UTF-8, or contains NaN, NUL, a number out of range or a duplicate key; "
    "or the AMQP properties or a header cannot be read",
    "SCHEMA_INVALID": "a field is missing, unknown or of the wrong type; the path names it",
    "SENDER_MISMATCH": (
        "the AMQP user_id is missing or belongs to another agent, the sender claims to be orchestrator, or "
        "the message has CC or BCC headers"
    ),
    "UNKNOWN_SENDER": "the agent is not registered, or it was revoked",
    "BAD_SIGNATURE": "the contract requires a signature for this type and it is missing, or the signature is invalid",
    "DUPLICATE_CONFLICT": (
        "the packet_id is taken by other content, or a version 5 id cannot be recomputed from cause and ordinal"
    ),
    "EXPIRED": "the packet expired before the gate judged it",
    "CLOCK_SKEW": "created_at is more than 5 minutes in the future",
    "UNKNOWN_SESSION": "no such session in this shard",
    "UNKNOWN_CONTRACT": (
        "a START of apc/1.1 names a contract that the gate does not have, or one for another kind of session"
    ),
    "SESSION_TERMINAL": "the session is CLOSED or HALTED",
    "SESSION_PAUSED": "the session is paused and already holds 1,000 packets",
    "NOT_AUTHORIZED": (
        "role or swarm differ from the registration, the sender is no member of the session, or a right is missing"
    ),
    "UNROUTABLE": (
        "a recipient does not exist, is revoked or does not handle the type or the schema; or an ASK or a "
        "MULTICAST names the client of a run; or the recipient of a TRANSFER is not in to_swarm"
    ),
    "PHASE_MISMATCH": "run_phase is neither the session's nor the parent's",
    "GENERATION_MISMATCH": "trace.generation is above the session's, or a TRANSFER's differs from it",
    "PHASE_FORBIDS_TYPE": "the phase does not allow this packet type",
    "CONTENT_INVALID": "the schema is not registered, or the content does not fit it; the path names the place",
    "LINEAGE_REQUIRED": "the contract requires a lineage block for this type",
    "PROOF_REQUIRED": "the contract requires a proof bundle for this type",
    "TRANSFER_WINDOW_CLOSED": "the generation is in a closed window, or below min_generation",
    "THROTTLE_MODE": "the mode is not allowed in this phase",
    "THROTTLE_CROSS_USE_CASE": "cross-use-case transfer is not allowed in this window",
    "THROTTLE_SCORE": "the sender's score does not exceed the receiver's by the required factor",
    "THROTTLE_TOP_K": "top_k is missing or above the limit, or better transfers were selected at this barrier",
    "PROTOCOL_DECAYED": "the protocol, or an ancestor of it, is blocked",
    "NOT_RETRACTABLE": "the target is unknown, in another session, or already retracted",
    "DRIFT_CHECK_FAILED": "an anti-drift check in mode enforce failed; rule and message name it",
    "LOOP_DETECTED": "the sender repeated the same content too often, or answers added nothing new",
    "QUOTA_EXCEEDED": "the sender used up its packets per second; the NACK is DEFERRED",
    "OVERLOADED": (
        "too many deliveries are outstanding at a recipient, or the open packets of the session have too many"
        " bytes; the NACK is DEFERRED"
    ),
    "BUDGET_EXHAUSTED": (
        "the budget of the task or of the session is spent, a TASK_IR asks for more than is left, or the "
        "session has taken as many packets as a gate remembers (limits.session_items)"
    ),
}


# Verdicts and dead letters in words. The long form of each code is docs/reference/refusals.md.

_HELD = "held: it is judged at the barrier of its generation, or when the session is resumed"
_ACCEPTED = "accepted: every rule of the contract let it pass"


def ruling_of(row: PacketRow, hops: Sequence[TransitionRow]) -> VerdictWords:
    """Return the verdict on a packet; of a held one the final verdict, when it has one."""
    verdict, refusal, at = row.verdict, row.refusal or {}, row.judged_at
    if verdict == "held":
        ruling = next((hop for hop in hops if hop.recipient == "" and hop.from_state == "SCHEMA_VALIDATED"), None)
        if ruling is not None:
            refusal = (ruling.metadata or {}).get("refusal") or {}
            verdict = "refused" if refusal or ruling.to_state == "REJECTED_POLICY" else "accepted"
            at = ruling.occurred_at
    code = _text(refusal, "code") or (row.refusal_code if verdict == "refused" else None)
    retry_after = refusal.get("retry_after_ms")
    return VerdictWords(
        verdict=verdict,
        code=code,
        rule=_text(refusal, "rule"),
        path=_text(refusal, "path"),
        message=_text(refusal, "message"),
        words=_words(verdict, code, CAUSES.get(code or "")),
        remedy=remedy_of(code) or None if code else None,
        retry_after_ms=retry_after if isinstance(retry_after, int) else None,
        judged_at=at,
        contract_hash=row.contract_hash.hex(),
    )


def dead_words(reason: str | None) -> str:
    """Return why a delivery is dead, one sentence."""
    text = reason or ""
    for beginning, words in _DEAD.items():
        if text.startswith(beginning):
            rest = text[len(beginning) :].lstrip(" :")
            return f"{words}: {rest}" if rest else words
    return text or "the log does not say why"


_DEAD = {
    "handler_error": "the handler of the recipient failed",
    "delivery_limit": "the recipient died with it too often",
    "overflow": "the inbox of the recipient was full",
    "no_route": "the recipient has no inbox",
    "retry_limit": "the handler asked for too many further attempts",
}


def _words(verdict: str, code: str | None, cause: str | None) -> str:
    if verdict == "accepted":
        return _ACCEPTED
    if verdict == "held":
        return _HELD
    return f"refused: {cause}" if cause else f"refused with {code}"


def _text(refusal: Mapping[str, Any], name: str) -> str | None:
    value = refusal.get(name)
    return value if isinstance(value, str) else None


# Pages of packets: filters that are safe for a large log, and text search with a limit.

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
    return PacketPage.of(items=shown, next=cursor)


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
    return PacketPage.of(items=rows, next=cursor, looked_at=looked_at, is_complete=is_complete)


def _cursor(query: PacketQuery, shard: int, seq: int) -> str:
    return write_cursor("packets", query.filters, shard, seq)


def _position(values: list[Any]) -> Position:
    shard, seq = values
    return Position(max(min(shard, (1 << 31) - 1), -1), seq)

"""Packets: in a list, one by itself, what it caused, what rests on it."""

from datetime import datetime
from typing import Any
from uuid import UUID

from apc_web.models.model_base import NEXT, ApiModel, LogPlace
from apc_web.models.runs import SessionMachine


class PacketSummary(ApiModel):
    """One packet in a list."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    session_id: str
    run_id: str
    task_id: str
    run_phase: str
    round: int
    generation: int
    step: int
    sender: str
    sender_role: str
    sender_swarm: str
    recipients: list[str]
    judged_at: datetime
    verdict: str
    """accepted, refused or held; of a packet that was held the verdict that it got later."""
    refusal_code: str | None
    state: str
    """The state of its lifecycle over all its recipients."""
    parent_packet_id: UUID | None
    cause_packet_id: UUID | None
    is_stale: bool
    """It rests on a retracted packet."""


class PacketPage(ApiModel):
    """Packets in the order of the log, oldest first unless `order=newest`."""

    items: list[PacketSummary]
    next: str | None = NEXT
    looked_at: int | None = None
    """Of a text search: how many packets it looked at."""
    is_complete: bool = True
    """Of a text search: false when it stopped at its limit; `next` goes on from there."""


class PacketHop(ApiModel):
    """One step of a packet's lifecycle."""

    seq: int
    recipient: str
    """'' is the whole packet."""
    attempt: int
    event: str
    from_state: str
    to_state: str
    at: datetime
    actor: str
    metadata: dict[str, Any] | None


class VerdictWords(ApiModel):
    """The verdict and why."""

    verdict: str
    code: str | None
    rule: str | None
    path: str | None
    """Place in the packet."""
    message: str | None
    """What the gate told the sender."""
    words: str
    """What the verdict means, one sentence."""
    remedy: str | None
    """What would have let it pass."""
    retry_after_ms: int | None
    judged_at: datetime
    contract_hash: str


class PacketLink(ApiModel):
    """A neighbour in the causal graph."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    sender: str
    verdict: str
    edge: str
    """cause or parent."""


class PacketDetail(PacketSummary):
    """One packet with everything that the log has on it."""

    root_packet_id: UUID
    channel: str
    confidence: float
    created_at: datetime
    expires_at: datetime
    recorded_at: datetime
    ruling: VerdictWords
    facts: dict[str, Any]
    """What the rules read when it was judged."""
    document: dict[str, Any] | None
    """The packet as JSON; null when its body is sealed or cannot be read."""
    is_sealed: bool
    """The body is encrypted: this server has no key."""
    body_bytes: int
    packet_hash: str
    user_id: str
    """The broker's user who published it."""
    has_signature: bool
    hops: list[PacketHop]
    lifecycle: SessionMachine
    """The machine of its session's contract that it moves through, once for each recipient."""
    causes: list[PacketLink]
    """Its cause and its parent."""
    effects: list[PacketLink]
    """What followed from it, at most 100."""
    stale_because: UUID | None
    other_sessions: list[str]
    """Sessions with another packet of this id; name one with `?session=`."""


class TreeNode(ApiModel):
    """A packet of a causal tree."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    sender: str
    recipients: list[str]
    run_phase: str
    generation: int
    verdict: str
    refusal_code: str | None
    judged_at: datetime
    above: UUID | None
    """The packet that it stands under; null for the root."""
    edge: str | None
    """Why: cause or parent."""
    depth: int
    """0 for the root."""


class CausalTree(ApiModel):
    """What a packet has caused: the root first, every packet after the one that it stands under."""

    items: list[TreeNode]
    is_cut: bool
    """There is more than `limit`."""


class RestingPacket(ApiModel):
    """A packet that rests on another."""

    shard: int
    seq: int
    packet_id: UUID
    packet_type: str
    sender: str
    run_phase: str
    round: int
    generation: int
    judged_at: datetime
    is_stale: bool
    is_retracted: bool


class ImpactAnswer(ApiModel):
    """What rests on a packet, transitively, in the order of the log; at most `limit`."""

    packet: LogPlace
    items: list[RestingPacket]
    total: int


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

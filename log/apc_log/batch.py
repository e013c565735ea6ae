"""The log batch: one micro-batch of the orchestrator in one message, the unit of commitment.

Written by the orchestrator, read by the persister; msgspec MessagePack, arrays, tagged entries. Packet bodies
are the exact bytes that were received. JSON columns travel as encoded JSON: nobody decodes them on the way.
Source: docs/reference/log-format.md.
"""

from datetime import datetime
from uuid import UUID

import msgspec

LOG_BATCH_VERSION = 1
LOG_BATCH_TYPE = "log_batch"
EPOCH_OPEN_TYPE = "epoch_open"
SIGNS_TYPE = "signs"
CONTENT_TYPE = "application/msgpack"


class PacketEntry(msgspec.Struct, frozen=True, array_like=True, tag="packet"):
    """A packet as accepted, held or refused (table agent_packets, and its id in packet_ids)."""

    packet_id: UUID
    packet_type: str
    channel: str
    run_phase: str
    session_id: str
    run_id: str
    task_id: str
    root_packet_id: UUID
    parent_packet_id: UUID | None
    cause_packet_id: UUID | None
    sender_agent_id: str
    sender_role: str
    sender_swarm_id: str
    recipients: list[str]
    """The resolved recipients."""
    generation: int
    """trace.generation of the packet."""
    round: int
    step: int
    """The session's step when the packet was judged."""
    confidence: float
    created_at: datetime
    expires_at: datetime
    verdict: str
    refusal: bytes | None
    """JSON {code, rule, path, message, retry_after_ms?}; its code is also column refusal_code."""
    contract_hash: bytes
    facts: bytes
    """JSON: the values that the rules and guards read."""
    body: bytes
    packet_hash: bytes
    payload_hash: bytes
    user_id: str
    signature: str | None


class HopEntry(msgspec.Struct, frozen=True, array_like=True, tag="hop"):
    """What one input did to one packet's lifecycle for one recipient (table packet_events)."""

    session_id: str
    packet_id: UUID
    recipient: str
    """'' = the whole packet."""
    attempt: int
    from_state: str
    to_state: str
    events: list[str]
    occurred_at: list[datetime]
    actor: str
    metadata: bytes | None
    """JSON."""


class LineageEntry(msgspec.Struct, frozen=True, array_like=True, tag="lineage"):
    """The lineage block of a packet (table packet_lineage)."""

    session_id: str
    packet_id: UUID
    protocol_id: str
    parent_protocol_ids: list[str]
    ancestor_swarms: list[str]
    cross_use_case: bool
    transfer_mode: str
    from_swarm: str | None
    to_swarm: str | None
    sender_score: float | None
    receiver_score: float | None


class CoordinationEntry(msgspec.Struct, frozen=True, array_like=True, tag="coordination"):
    """A transition or a barrier of a session (table coordination_events)."""

    session_id: str
    round: int
    generation: int
    step: int
    cause_packet_id: UUID
    event: str
    from_state: str
    to_state: str
    facts: bytes
    """JSON."""


class ConflictEntry(msgspec.Struct, frozen=True, array_like=True, tag="conflict"):
    """What takes no id (table packet_conflicts): conflicts, reruns, early refusals, security events."""

    session_id: str | None
    packet_id: UUID | None
    kind: str
    code: str | None
    reason: str
    raw: bytes
    first_hash: bytes | None
    second_hash: bytes | None
    user_id: str | None


class RegistryEntry(msgspec.Struct, frozen=True, array_like=True, tag="registry"):
    """A change of the registry, or of a host's presence (table registry_events; view `agents` follows from it)."""

    change_id: UUID
    agent_id: str
    change: bytes
    """JSON: the RegistryChange, or a HostChanged."""


Entry = PacketEntry | HopEntry | LineageEntry | CoordinationEntry | ConflictEntry | RegistryEntry


class SessionUpdate(msgspec.Struct, frozen=True, array_like=True):
    """The new state of a session that the batch touched: upserted unread into the projection `sessions`."""

    session_id: str
    run_id: str
    state: str
    is_terminal: bool
    round: int
    generation: int
    step: int
    open_deliveries: int
    document: bytes
    """JSON: the whole state document."""


class LogBatch(msgspec.Struct, frozen=True, array_like=True):
    """The transaction: confirmed by the broker = it happened."""

    version: int
    shard: int
    epoch: int
    batch_no: int
    judged_at: datetime
    entries: list[Entry]
    sessions: list[SessionUpdate]


class OpeningBatch(LogBatch, frozen=True, array_like=True):
    """A log batch that opens a session of a contract that is not the deployment's default, and carries its file."""

    contracts: list[bytes] = []


class EpochOpen(msgspec.Struct, frozen=True, array_like=True):
    """An orchestrator takes a shard: the persister gives the holder epoch + 1 and batch_no 0 in table `shards`."""

    version: int
    shard: int
    holder: UUID
    contract: bytes = b""
    """The contract file that the holder judges by; the log keeps each one once."""
    orchestrator: str = ""
    """The name of the orchestrator, for `apc shard list`."""


class SignsOfLifeReport(msgspec.Struct, frozen=True, array_like=True):
    """When agents were heard of last: for the projection agent_presence, and never for the log."""

    version: int
    shard: int
    signs: dict[str, datetime]
    """agent_id -> the gate's time of the newest packet or receipt."""


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_batch_decoder = msgspec.msgpack.Decoder(OpeningBatch)
_epoch_decoder = msgspec.msgpack.Decoder(EpochOpen)
_signs_decoder = msgspec.msgpack.Decoder(SignsOfLifeReport)


def encode(value: LogBatch | EpochOpen | SignsOfLifeReport) -> bytes:
    """Return the MessagePack bytes of a batch, an epoch opening or a report of signs of life."""
    return _encoder.encode(value)


def decode_batch(body: bytes) -> LogBatch:
    """Decode a batch. Raises msgspec.DecodeError (a ValidationError is one) on anything else."""
    batch = _batch_decoder.decode(body)
    if batch.contracts:
        return batch
    return LogBatch(
        batch.version, batch.shard, batch.epoch, batch.batch_no, batch.judged_at, batch.entries, batch.sessions
    )


def decode_epoch_open(body: bytes) -> EpochOpen:
    """Decode the opening of an epoch. Raises msgspec.DecodeError on anything else."""
    return _epoch_decoder.decode(body)


def decode_signs(body: bytes) -> SignsOfLifeReport:
    """Decode a report of signs of life. Raises msgspec.DecodeError on anything else."""
    return _signs_decoder.decode(body)

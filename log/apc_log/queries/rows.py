"""What the queries return: frozen rows, times in UTC, JSON columns as Python values."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

JsonObject = dict[str, Any]


class Position(NamedTuple):
    """A place in the log; pages go on behind one. Within a shard the order of `seq` is the order of
    causes."""

    shard: int
    seq: int


@dataclass(frozen=True, slots=True)
class PacketRow:
    """A packet as it was admitted, refused or held. `body` are the exact bytes that were received."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    judged_at: datetime
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
    recipients: tuple[str, ...]
    generation: int
    round: int
    step: int
    confidence: float
    created_at: datetime
    expires_at: datetime
    verdict: str
    """On arrival: accepted, refused or held."""
    refusal_code: str | None
    refusal: JsonObject | None
    contract_hash: bytes
    facts: JsonObject
    body: bytes
    packet_hash: bytes
    user_id: str
    signature: str | None

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class TransitionRow:
    """One transition of a packet's lifecycle; `recipient` '' is the whole packet, `ordinal` its place in the
    hop."""

    shard: int
    seq: int
    ordinal: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str
    packet_id: UUID
    recipient: str
    attempt: int
    event: str
    from_state: str
    to_state: str
    occurred_at: datetime
    actor: str
    metadata: JsonObject | None

    @property
    def position(self) -> Position:
        """Its hop's place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class CoordinationRow:
    """A transition or a barrier of a session."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str
    round: int
    generation: int
    step: int
    cause_packet_id: UUID
    event: str
    from_state: str
    to_state: str
    facts: JsonObject

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


@dataclass(frozen=True, slots=True)
class ConflictRow:
    """An input that takes no packet id: refused for its id, unreadable, or dropped by the log writer."""

    shard: int
    seq: int
    epoch: int
    batch_no: int
    recorded_at: datetime
    session_id: str | None
    packet_id: UUID | None
    conflict: str
    """The column `kind` of packet_conflicts."""
    code: str | None
    reason: str
    user_id: str | None

    @property
    def position(self) -> Position:
        """Its place in the log."""
        return Position(self.shard, self.seq)


LogRow = ConflictRow | PacketRow | TransitionRow | CoordinationRow


@dataclass(frozen=True, slots=True)
class Staleness:
    """A packet rests on one that was retracted."""

    because_packet_id: UUID
    """What it rests on: retracted, or stale itself."""
    retraction_packet_id: UUID | None
    """None: it came after the retraction."""
    marked_at: datetime


@dataclass(frozen=True, slots=True)
class PacketTimeline:
    """A packet, the state it is in over all its recipients, and how it came there."""

    packet: PacketRow
    state: str
    transitions: tuple[TransitionRow, ...]
    """In the order of the log; empty when they were not asked for."""
    stale: Staleness | None = None


@dataclass(frozen=True, slots=True)
class TracePage:
    """Packets in the order of the log, and where the next page begins; None at the end."""

    packets: tuple[PacketTimeline, ...]
    after: Position | None

"""What a replay reads: the entries of one session, as the log holds them (docs/reference/log-format.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEntry:
    """The position of an entry. (epoch, batch_no) names its log batch."""

    table: ClassVar[str]
    shard: int
    seq: int
    epoch: int
    batch_no: int

    @property
    def batch(self) -> tuple[int, int]:
        return self.epoch, self.batch_no


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedPacket(LogEntry):
    """A row of agent_packets."""

    table: ClassVar[str] = "agent_packets"
    packet_id: UUID
    judged_at: datetime
    recipients: tuple[str, ...]
    cause_packet_id: UUID | None
    round: int
    step: int
    verdict: str
    refusal: Mapping[str, Any] | None
    contract_hash: bytes
    facts: Mapping[str, Any]
    user_id: str
    packet_hash: bytes
    body: bytes | None
    """The exact bytes; None when they were erased."""
    envelope: Mapping[str, Any]
    """The columns that repeat the packet's own fields, by name (`envelope_columns`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedHop(LogEntry):
    """A row of packet_events."""

    table: ClassVar[str] = "packet_events"
    packet_id: UUID
    recipient: str
    attempt: int
    from_state: str
    to_state: str
    events: Sequence[str]
    occurred_at: Sequence[datetime]
    actor: str
    metadata: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTransition(LogEntry):
    """A row of coordination_events."""

    table: ClassVar[str] = "coordination_events"
    event: str
    from_state: str
    to_state: str
    round: int
    generation: int
    step: int
    cause: UUID
    facts: Mapping[str, Any]


Entry = RecordedPacket | RecordedHop | RecordedTransition

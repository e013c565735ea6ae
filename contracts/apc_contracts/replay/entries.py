"""What a replay reads: the entries of one session, as the log holds them (docs/reference/log-format.md)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

import orjson

from apc_contracts.errors import ContractError
from apc_contracts.packet import Packet

# Errors of a replay whose log does not contain what it should.


class ReplayDiffers(ContractError):
    """The first place where the record differs from the recomputation.

    `place` is shard/seq, `what` the table and column, `recorded` and `recomputed` the two values.
    """

    def __init__(self, shard: int, seq: int, what: str, recorded: Any, recomputed: Any) -> None:
        super().__init__(f"entry {shard}/{seq}, {what}: recorded {_short(recorded)}, recomputed {_short(recomputed)}")
        self.shard = shard
        self.seq = seq
        self.what = what
        self.recorded = recorded
        self.recomputed = recomputed

    @property
    def document(self) -> dict[str, Any]:
        """The difference as a JSON object."""
        place = {"shard": self.shard, "seq": self.seq, "what": self.what}
        return place | {"recorded": _short(self.recorded), "recomputed": _short(self.recomputed)}


class ReplayImpossible(ContractError):
    """Something that a replay needs is missing: an erased body, an unknown contract."""

    def __init__(self, shard: int, seq: int, message: str) -> None:
        super().__init__(f"entry {shard}/{seq}: {message}")
        self.shard = shard
        self.seq = seq
        self.message = message

    @property
    def document(self) -> dict[str, Any]:
        """What is missing, as a JSON object."""
        return {"shard": self.shard, "seq": self.seq, "what": "impossible", "message": self.message}


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}…"


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


# The columns of an entry that follow from its packet, and values in the form that JSON gives them.


def envelope_columns(packet: Packet) -> dict[str, Any]:
    """Return the columns of agent_packets that repeat the packet."""
    trace, sender = packet.trace, packet.sender
    return {
        "packet_type": packet.packet_type.value,
        "channel": packet.channel.value,
        "run_phase": packet.run_phase.value,
        "session_id": trace.session_id,
        "run_id": trace.run_id,
        "task_id": trace.task_id,
        "root_packet_id": trace.root_packet_id,
        "parent_packet_id": trace.parent_packet_id,
        "sender_agent_id": sender.agent_id,
        "sender_role": sender.role,
        "sender_swarm_id": sender.swarm_id,
        "generation": trace.generation,
        "confidence": packet.confidence,
        "created_at": packet.created_at,
        "expires_at": packet.expires,
    }


ENVELOPE_COLUMNS = (
    "packet_type",
    "channel",
    "run_phase",
    "session_id",
    "run_id",
    "task_id",
    "root_packet_id",
    "parent_packet_id",
    "sender_agent_id",
    "sender_role",
    "sender_swarm_id",
    "generation",
    "confidence",
    "created_at",
    "expires_at",
)
"""The names that `envelope_columns` returns."""


def as_json(value: Any) -> Any:
    """Return the value as it comes back from a JSON column."""
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS))

"""The packet envelope (contract.md section 1) and the 14 concrete packets."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, Self, TypeVar
from uuid import UUID

from pydantic import AfterValidator, Field, model_validator

from apc_contracts.model import Count, Fraction, Id, Model, Name, OpenMap, Ratio, Sha256, Time, Uuid, broken
from apc_contracts.payloads import (
    AckPayload,
    ArbitrationPayload,
    ArtifactPayload,
    ClaimPayload,
    DecisionPayload,
    ErrorPayload,
    EvalPayload,
    HeartbeatPayload,
    IdeaPayload,
    NackPayload,
    Payload,
    RetractionPayload,
    SignalPayload,
    TaskIrPayload,
    TransferPayload,
)
from apc_contracts.task_ir import FalsifierCost
from apc_contracts.vocabulary import Channel, DeliveryMode, PacketType, RunPhase, TransferMode

MAX_TTL_MS = 86_400_000
MAX_ACK_TIMEOUT_MS = 3_600_000
MAX_RETRY_LIMIT = 10
MAX_PRIORITY = 9
MAX_SYMBOLIC_KEYS = 32

PayloadT = TypeVar("PayloadT", bound=Payload, covariant=True)


def _unique(keys: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(keys)) < len(keys):
        raise broken("", "a key is listed twice: list each key once")
    return keys


SymbolicKeys = Annotated[
    tuple[Name, ...],
    Field(max_length=MAX_SYMBOLIC_KEYS, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_unique),
]


class Actor(Model):
    """Who sends."""

    agent_id: Id
    role: Name
    swarm_id: Id
    dialect_id: str | None = None
    dialect_hash: str | None = None
    model_id: str | None = None
    capabilities: tuple[str, ...] | None = None


class Recipient(Model):
    """To whom. `_all` and `_substrate` are the recipients of a BROADCAST and of a SUBSTRATE packet."""

    agent_id: Id
    role: Name | None = None
    swarm_id: Id | None = None


class Trace(Model):
    """Where the packet stands: its session, run and task, its ancestors, the generation and step."""

    session_id: Id
    run_id: Id
    task_id: Id
    root_packet_id: Uuid
    parent_packet_id: Uuid | None = None
    generation: Count
    step: Count
    vector_clock: Mapping[Id, Count] | None = None


class Routing(Model):
    """How the packet travels. Priority >= 5 takes the urgent queue."""

    delivery_mode: DeliveryMode
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
    ttl_ms: Annotated[int, Field(ge=1, le=MAX_TTL_MS)]
    requires_ack: bool
    ack_timeout_ms: Annotated[int, Field(ge=1, le=MAX_ACK_TIMEOUT_MS)] | None = None
    retry_limit: Annotated[int, Field(ge=0, le=MAX_RETRY_LIMIT)] | None = None


class Lineage(Model):
    """Which protocol the packet carries and where it comes from."""

    protocol_id: Name
    parent_protocol_ids: tuple[Name, ...] = ()
    ancestor_swarms: tuple[Id, ...] = ()
    cross_use_case: bool = False
    transfer_mode: TransferMode


class Falsifier(Model):
    """A test that would refute a claim."""

    id: Name
    target_claim_id: Name
    test: str
    fail_if: str
    cost: FalsifierCost


class GateScores(Model):
    """Measured gates beside a claim; all optional."""

    rtf: Fraction | None = None
    stability: Fraction | None = None
    audit: Fraction | None = None
    outcome: Fraction | None = None
    learnability: Fraction | None = None
    generalization_ratio: Ratio | None = None
    symbol_coverage: Fraction | None = None
    drift_risk: Fraction | None = None


class Endorsement(Model):
    """An agent stands by a payload: `payload_hash` is the hex SHA-256 of its canonical form."""

    agent_id: Id
    payload_hash: Sha256
    signature: str | None = None


class ProofBundle(Model):
    """Why a packet may be believed."""

    evidence_refs: tuple[str, ...] = ()
    falsifiers: tuple[Falsifier, ...] = ()
    gate_scores: GateScores | None = None
    signatures: tuple[Endorsement, ...] = ()


class Packet(Model, Generic[PayloadT]):
    """An APC/1.0 packet. Build one of its 14 concrete classes; `parse_packet` returns one of them."""

    protocol_version: Literal["apc/1.0"]
    packet_id: Uuid
    packet_type: PacketType
    channel: Channel
    run_phase: RunPhase
    created_at: Time
    expires_at: Time | None = None
    sender: Actor
    recipients: Annotated[tuple[Recipient, ...], Field(min_length=1)]
    trace: Trace
    routing: Routing
    confidence: Fraction
    symbolic_keys: SymbolicKeys
    capability_tags: tuple[str, ...] | None = None
    lineage: Lineage | None = None
    proof_bundle: ProofBundle | None = None
    payload: PayloadT
    metadata: OpenMap | None = None

    @property
    def expires(self) -> datetime:
        """When the packet ends: expires_at, or created_at + ttl_ms."""
        return self.expires_at or self.created_at + timedelta(milliseconds=self.routing.ttl_ms)

    @property
    def is_root(self) -> bool:
        """Whether the packet has no parent."""
        return self.trace.parent_packet_id is None

    @model_validator(mode="after")
    def _envelope_agrees(self) -> Self:
        if self.channel is Channel.INTRA_AGENT and len(self.recipients) != 1:
            raise broken("recipients", "INTRA_AGENT has exactly one recipient: name one, or use INTER_AGENT")
        _check_ancestors(self.packet_id, self.trace)
        return self


def _check_ancestors(packet_id: UUID, trace: Trace) -> None:
    is_own_root = trace.root_packet_id == packet_id
    if trace.parent_packet_id is None:
        if not is_own_root:
            raise broken(
                "trace.root_packet_id",
                "a packet without parent is its own root: use packet_id, or name the parent",
            )
    elif is_own_root:
        raise broken("trace.root_packet_id", "a packet with a parent keeps its parent's root: use that one")
    elif trace.parent_packet_id == packet_id:
        raise broken("trace.parent_packet_id", "a packet cannot be its own parent: name the packet that caused it")


class TaskIrPacket(Packet[TaskIrPayload]):
    packet_type: Literal[PacketType.TASK_IR] = PacketType.TASK_IR


class IdeaPacket(Packet[IdeaPayload]):
    packet_type: Literal[PacketType.IDEA] = PacketType.IDEA


class ClaimPacket(Packet[ClaimPayload]):
    packet_type: Literal[PacketType.CLAIM] = PacketType.CLAIM


class ArtifactPacket(Packet[ArtifactPayload]):
    packet_type: Literal[PacketType.ARTIFACT] = PacketType.ARTIFACT


class SignalPacket(Packet[SignalPayload]):
    packet_type: Literal[PacketType.SIGNAL] = PacketType.SIGNAL


class EvalPacket(Packet[EvalPayload]):
    packet_type: Literal[PacketType.EVAL] = PacketType.EVAL


class TransferPacket(Packet[TransferPayload]):
    """A TRANSFER; lineage and payload agree on protocol and mode."""

    packet_type: Literal[PacketType.TRANSFER] = PacketType.TRANSFER

    @model_validator(mode="after")
    def _lineage_agrees(self) -> Self:
        if self.lineage is None:
            return self
        if self.lineage.protocol_id != self.payload.protocol_id:
            raise broken("lineage.protocol_id", "lineage and payload disagree: use payload.protocol_id in both")
        if self.lineage.transfer_mode is not self.payload.transfer_policy.mode:
            raise broken(
                "lineage.transfer_mode",
                "lineage and payload disagree: use payload.transfer_policy.mode in both",
            )
        return self


class ArbitrationPacket(Packet[ArbitrationPayload]):
    packet_type: Literal[PacketType.ARBITRATION] = PacketType.ARBITRATION


class DecisionPacket(Packet[DecisionPayload]):
    packet_type: Literal[PacketType.DECISION] = PacketType.DECISION


class RetractionPacket(Packet[RetractionPayload]):
    packet_type: Literal[PacketType.RETRACTION] = PacketType.RETRACTION


class AckPacket(Packet[AckPayload]):
    packet_type: Literal[PacketType.ACK] = PacketType.ACK


class NackPacket(Packet[NackPayload]):
    packet_type: Literal[PacketType.NACK] = PacketType.NACK


class ErrorPacket(Packet[ErrorPayload]):
    packet_type: Literal[PacketType.ERROR] = PacketType.ERROR


class HeartbeatPacket(Packet[HeartbeatPayload]):
    packet_type: Literal[PacketType.HEARTBEAT] = PacketType.HEARTBEAT


AnyPacket = Annotated[
    TaskIrPacket
    | IdeaPacket
    | ClaimPacket
    | ArtifactPacket
    | SignalPacket
    | EvalPacket
    | TransferPacket
    | ArbitrationPacket
    | DecisionPacket
    | RetractionPacket
    | AckPacket
    | NackPacket
    | ErrorPacket
    | HeartbeatPacket,
    Field(discriminator="packet_type"),
]
"""One of the 14 packets, told apart by packet_type."""

PACKET_TYPES: Mapping[PacketType, type[Packet[Any]]] = MappingProxyType(
    {
        PacketType.TASK_IR: TaskIrPacket,
        PacketType.IDEA: IdeaPacket,
        PacketType.CLAIM: ClaimPacket,
        PacketType.ARTIFACT: ArtifactPacket,
        PacketType.SIGNAL: SignalPacket,
        PacketType.EVAL: EvalPacket,
        PacketType.TRANSFER: TransferPacket,
        PacketType.ARBITRATION: ArbitrationPacket,
        PacketType.DECISION: DecisionPacket,
        PacketType.RETRACTION: RetractionPacket,
        PacketType.ACK: AckPacket,
        PacketType.NACK: NackPacket,
        PacketType.ERROR: ErrorPacket,
        PacketType.HEARTBEAT: HeartbeatPacket,
    }
)
"""The concrete class of each packet type."""


def _payload_type(packet: type[Packet[Any]]) -> type[Payload]:
    annotation = packet.model_fields["payload"].annotation
    assert isinstance(annotation, type) and issubclass(annotation, Payload)
    return annotation


PAYLOAD_TYPES: Mapping[PacketType, type[Payload]] = MappingProxyType(
    {kind: _payload_type(packet) for kind, packet in PACKET_TYPES.items()}
)
"""The payload class of each packet type."""

TYPE_OF_PAYLOAD: Mapping[type[Payload], PacketType] = MappingProxyType(
    {payload: kind for kind, payload in PAYLOAD_TYPES.items()}
)
"""The packet type that carries a payload class."""

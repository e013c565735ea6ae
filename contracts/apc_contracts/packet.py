"""Packets: the parts of the envelope, the 15 concrete packets, and what a packet refers to and defines.

Source: docs/specification/contract.md section 1.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Generic, Literal, Self, Union, get_args, get_origin
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from typing_extensions import TypeVar

from apc_contracts.contract_model import Count, Fraction, Id, Model, Name, OpenMap, Ratio, Sha256, Time, Uuid, broken
from apc_contracts.payloads.by_type import (
    AckPayload,
    AgentRequest,
    ArbitrationPayload,
    ArtifactPayload,
    ClaimPayload,
    DecisionPayload,
    ErrorPayload,
    EvalPayload,
    HeartbeatPayload,
    IdeaPayload,
    MessagePayload,
    NackPayload,
    OpenEvalPayload,
    Payload,
    RetractionPayload,
    SignalPayload,
    TaskIrPayload,
    TransferPayload,
)
from apc_contracts.payloads.session_signals import first_new_field
from apc_contracts.payloads.task_ir import FalsifierCost, IrClaim
from apc_contracts.vocabulary import (
    PROTOCOL_1_1,
    PROTOCOL_VERSION,
    SIGNALS_OF_1_1,
    Channel,
    DeliveryMode,
    PacketType,
    RunPhase,
    TransferMode,
)

MAX_TTL_MS = 86_400_000
MAX_ACK_TIMEOUT_MS = 3_600_000
MAX_RETRY_LIMIT = 10
MAX_PRIORITY = 9
MAX_SYMBOLIC_KEYS = 32


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
    """The sender.

    Attributes:
        agent_id: its registered id.
        role: the role under which it is registered.
        swarm_id: the swarm under which it is registered.
        dialect_id: the dialect that it writes in; not checked.
        dialect_hash: a hash of that dialect; not checked.
        model_id: the language model that it runs, if any; not checked.
        capabilities: what it says that it can do; not checked.
    """

    agent_id: Id
    role: Name
    swarm_id: Id
    dialect_id: str | None = None
    dialect_hash: str | None = None
    model_id: str | None = None
    capabilities: tuple[str, ...] | None = None


class Recipient(Model):
    """A recipient. `_all` and `_substrate` are the recipients of a BROADCAST and of a SUBSTRATE packet.

    Attributes:
        agent_id: a registered id; `_all` of a BROADCAST, `_substrate` of a SUBSTRATE packet.
        role: narrows a BROADCAST to this role.
        swarm_id: narrows a BROADCAST to this swarm.
    """

    agent_id: Id
    role: Name | None = None
    swarm_id: Id | None = None


class Trace(Model):
    """The packet's position: its session, run and task, its ancestors, the generation and step.

    Attributes:
        session_id: the session that judges the packet; its shard follows from it.
        run_id: the run that the session belongs to.
        task_id: the task that it is work on; its budget is charged.
        root_packet_id: the first packet of the chain: of a packet without parent its own packet_id.
        parent_packet_id: the packet that it answers or goes on from.
        generation: the generation of a search, from 0; 0 elsewhere.
        step: the step of the session, from 0, as the sender knows it.
        vector_clock: agent -> the last step that the sender has seen of it; stored, not judged.
    """

    session_id: Id
    run_id: Id
    task_id: Id
    root_packet_id: Uuid
    parent_packet_id: Uuid | None = None
    generation: Count
    step: Count
    vector_clock: Mapping[Id, Count] | None = None


class Routing(Model):
    """How the packet travels. Priority >= 5 uses the urgent queue.

    Attributes:
        delivery_mode: DIRECT, MULTICAST, BROADCAST or SUBSTRATE.
        priority: 0..9; from 5 on it uses the urgent queue.
        ttl_ms: milliseconds from created_at until the packet ends, at most a day.
        requires_ack: whether the session waits until each recipient has handled it.
        ack_timeout_ms: milliseconds until the wait for a receipt ends, at most an hour; None = the contract's.
        retry_limit: further attempts after a failure, 0..10; None = the contract's.
    """

    delivery_mode: DeliveryMode
    priority: Annotated[int, Field(ge=0, le=MAX_PRIORITY)]
    ttl_ms: Annotated[int, Field(ge=1, le=MAX_TTL_MS)]
    requires_ack: bool
    ack_timeout_ms: Annotated[int, Field(ge=1, le=MAX_ACK_TIMEOUT_MS)] | None = None
    retry_limit: Annotated[int, Field(ge=0, le=MAX_RETRY_LIMIT)] | None = None


class Lineage(Model):
    """Which protocol the packet carries and where it comes from.

    Attributes:
        protocol_id: the protocol that the packet carries.
        parent_protocol_ids: the protocols that it was made from.
        ancestor_swarms: the swarms that held it before.
        cross_use_case: whether it comes from another use case.
        transfer_mode: how it moves, of a TRANSFER.
    """

    protocol_id: Name
    parent_protocol_ids: tuple[Name, ...] = ()
    ancestor_swarms: tuple[Id, ...] = ()
    cross_use_case: bool = False
    transfer_mode: TransferMode | None = None


class Falsifier(Model):
    """A test that would refute a claim.

    Attributes:
        id: its name in the packet.
        target_claim_id: the claim that it would refute.
        test: what to do.
        fail_if: the outcome that refutes the claim.
        cost: what running it costs.
    """

    id: Name
    target_claim_id: Name
    test: str
    fail_if: str
    cost: FalsifierCost


class GateScores(Model):
    """Measured gates beside a claim; all optional.

    Attributes:
        rtf: share of runs that can be repeated, 0..1.
        stability: 0..1.
        audit: 0..1.
        outcome: how well the task is solved, 0..1.
        learnability: 0..1.
        generalization_ratio: the score on unseen data to that on known data, 0..2.
        symbol_coverage: 0..1.
        drift_risk: 0..1, the lower the better.
    """

    rtf: Fraction | None = None
    stability: Fraction | None = None
    audit: Fraction | None = None
    outcome: Fraction | None = None
    learnability: Fraction | None = None
    generalization_ratio: Ratio | None = None
    symbol_coverage: Fraction | None = None
    drift_risk: Fraction | None = None


class Endorsement(Model):
    """An agent's endorsement of a payload; `payload_hash` is the hex SHA-256 of its canonical form.

    Attributes:
        agent_id: who endorses.
        payload_hash: lower-case hex SHA-256 of the canonical payload.
        signature: Ed25519 in base64, by a key that is registered for the agent.
    """

    agent_id: Id
    payload_hash: Sha256
    signature: str | None = None


class ProofBundle(Model):
    """Why a packet may be believed.

    Attributes:
        evidence_refs: packet ids, artifact hashes or addresses that support it.
        falsifiers: tests that would refute it.
        gate_scores: what was measured.
        signatures: who endorses the payload.
    """

    evidence_refs: tuple[str, ...] = ()
    falsifiers: tuple[Falsifier, ...] = ()
    gate_scores: GateScores | None = None
    signatures: tuple[Endorsement, ...] = ()


PayloadT = TypeVar("PayloadT", bound=Payload, covariant=True, default=Payload)
"""What a packet carries. `Packet` without brackets may carry any payload: check before reading it."""

SomePayload = TypeVar("SomePayload", bound=Payload)


class Packet(Model, Generic[PayloadT]):
    """A packet. Build one of its concrete classes; `parse_packet` returns one of them.

    Attributes:
        protocol_version: `apc/1.0` or `apc/1.1`.
        packet_id: a UUID that no other packet ever has; the SDK makes it.
        packet_type: what the payload is.
        channel: INTER_AGENT, or INTRA_AGENT for a packet to oneself.
        run_phase: the phase in which it is sent; the gate checks it against the session's.
        created_at: when it was made.
        expires_at: when it ends; None = created_at + routing.ttl_ms.
        sender: who sends it; the gate checks it against the broker's user.
        recipients: whom it is for, at least one.
        trace: its session, task and ancestors.
        routing: how it travels.
        confidence: how sure the sender is, 0..1.
        symbolic_keys: what it is about: at most 32 different names.
        capability_tags: free words; stored, not judged.
        lineage: the protocol that it carries; the contract says which packets need it.
        proof_bundle: why it may be believed; the contract says which packets need it.
        payload: what it says.
        metadata: anything else: it never controls anything.
    """

    # Built on first use: most console commands read no packet, and building 28 schemas takes 0.1 s.
    model_config = ConfigDict(defer_build=True)

    protocol_version: Literal["apc/1.0", "apc/1.1"]
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

    def payload_as(self, kind: type[SomePayload]) -> SomePayload:
        """Return the payload as this class. Raises TypeError when it is of another class."""
        payload = self.payload
        if isinstance(payload, kind):
            return payload
        raise TypeError(f"packet {self.packet_id} carries {type(payload).__name__}, not {kind.__name__}")

    @property
    def is_root(self) -> bool:
        """Whether the packet has no parent."""
        return self.trace.parent_packet_id is None

    def wants_ack(self, never_answered: Collection[PacketType]) -> bool:
        """Return whether the session waits for ACKs of it: it asks for them, leaves the agent, and may be answered."""
        return (
            self.routing.requires_ack and self.channel is Channel.INTER_AGENT and self.packet_type not in never_answered
        )

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

    @model_validator(mode="after")
    def _session_fits_version(self) -> Self:
        session = self.payload.session
        if self.protocol_version != PROTOCOL_VERSION:
            return self
        if self.payload.signal in SIGNALS_OF_1_1:
            raise broken("payload.signal", f"{PROTOCOL_VERSION} has no {self.payload.signal}: send {PROTOCOL_1_1}")
        if session is None:
            return self
        name = first_new_field(session)
        if name is not None:
            raise broken(f"payload.session.{name}", f"unknown field of {PROTOCOL_VERSION}: send {PROTOCOL_1_1}")
        return self


EVAL_TAG = "EVAL"
OPEN_EVAL_TAG = "OPEN_EVAL"


def _eval_kind(value: Any) -> str:
    """Return the tag of an EVAL's payload: everything of apc/1.0 has a metric_set, or is refused for want of one."""
    is_mapping = isinstance(value, Mapping)
    if isinstance(value, OpenEvalPayload) or (is_mapping and "metrics" in value and "metric_set" not in value):
        return OPEN_EVAL_TAG
    return EVAL_TAG


class EvalPacket(Packet[EvalPayload | OpenEvalPayload]):
    packet_type: Literal[PacketType.EVAL] = PacketType.EVAL
    payload: Annotated[
        Annotated[EvalPayload, Tag(EVAL_TAG)] | Annotated[OpenEvalPayload, Tag(OPEN_EVAL_TAG)],
        Discriminator(_eval_kind),
    ]

    @model_validator(mode="after")
    def _metrics_fit_version(self) -> Self:
        if self.protocol_version == PROTOCOL_VERSION and isinstance(self.payload, OpenEvalPayload):
            raise broken("payload.metric_set", f"required field is missing: add it, or send metrics in {PROTOCOL_1_1}")
        return self


class TransferPacket(Packet[TransferPayload]):
    """A TRANSFER; lineage and payload agree on the protocol and, where the lineage names one, on the mode."""

    packet_type: Literal[PacketType.TRANSFER] = PacketType.TRANSFER

    @model_validator(mode="after")
    def _lineage_agrees(self) -> Self:
        if self.lineage is None:
            return self
        if self.lineage.protocol_id != self.payload.protocol_id:
            raise broken("lineage.protocol_id", "lineage and payload disagree: use payload.protocol_id in both")
        if self.lineage.transfer_mode not in (None, self.payload.transfer_policy.mode):
            raise broken(
                "lineage.transfer_mode",
                "lineage and payload disagree: use payload.transfer_policy.mode in both",
            )
        return self


class ArbitrationPacket(Packet[ArbitrationPayload]):
    packet_type: Literal[PacketType.ARBITRATION] = PacketType.ARBITRATION


class DecisionPacket(Packet[DecisionPayload]):
    packet_type: Literal[PacketType.DECISION] = PacketType.DECISION

    @model_validator(mode="after")
    def _result_fits_version(self) -> Self:
        if self.payload.result is not None and self.protocol_version == PROTOCOL_VERSION:
            raise broken("payload.result", "unknown field: remove it")
        return self


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


class MessagePacket(Packet[MessagePayload]):
    packet_type: Literal[PacketType.MESSAGE] = PacketType.MESSAGE

    @model_validator(mode="after")
    def _is_of_its_version(self) -> Self:
        if self.protocol_version == PROTOCOL_VERSION:
            raise broken("packet_type", f"{PROTOCOL_VERSION} has no MESSAGE: send {PROTOCOL_1_1}")
        return self


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
    | HeartbeatPacket
    | MessagePacket,
    Field(discriminator="packet_type"),
]
"""One of the packets, discriminated by packet_type."""

PACKET_TYPES: Mapping[PacketType, type[Packet]] = MappingProxyType(
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
        PacketType.MESSAGE: MessagePacket,
    }
)
"""The concrete class of each packet type."""


def _payload_type(packet: type[Packet]) -> type[Payload]:
    annotation = packet.model_fields["payload"].annotation
    if annotation is not None and get_origin(annotation) is Union:
        annotation = get_args(get_args(annotation)[0])[0]
    assert isinstance(annotation, type) and issubclass(annotation, Payload)
    return annotation


PAYLOAD_TYPES: Mapping[PacketType, type[Payload]] = MappingProxyType(
    {kind: _payload_type(packet) for kind, packet in PACKET_TYPES.items()}
)
"""The payload class of each packet type."""

TYPE_OF_PAYLOAD: Mapping[type[Payload], PacketType] = MappingProxyType(
    {payload: kind for kind, payload in PAYLOAD_TYPES.items()} | {OpenEvalPayload: PacketType.EVAL}
)
"""The packet type that carries a payload class."""

__all__ = [
    "PACKET_TYPES",
    "PAYLOAD_TYPES",
    "TYPE_OF_PAYLOAD",
    "AckPacket",
    "Actor",
    "AnyPacket",
    "ArbitrationPacket",
    "ArtifactPacket",
    "ClaimPacket",
    "DecisionPacket",
    "Endorsement",
    "ErrorPacket",
    "EvalPacket",
    "Falsifier",
    "GateScores",
    "HeartbeatPacket",
    "IdeaPacket",
    "Lineage",
    "MessagePacket",
    "NackPacket",
    "Packet",
    "PayloadT",
    "ProofBundle",
    "Recipient",
    "RetractionPacket",
    "Routing",
    "SignalPacket",
    "TaskIrPacket",
    "Trace",
    "TransferPacket",
]


# What a packet refers to and what it defines, by name (docs/research/governance.md, References).
#
# The log derives the same two lists from the stored bytes (columns `refers_to` and `defines` of agent_packets); a test
# keeps both equal.

PACKET_PREFIX = "packet:"
ARTIFACT_PREFIX = "sha256:"
CLAIM_PREFIX = "claim:"
_DEFINING = frozenset({PacketType.ARTIFACT, PacketType.CLAIM, PacketType.TASK_IR})
_PACKET = re.compile(r"(?:packet:)?([0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12})")
_ARTIFACT = re.compile(r"sha256:[0-9a-fA-F]{64}")
_REFERENCE_LENGTH = len("sha256:") + 64
"""Characters of the longest reference."""


def reference_of(text: str) -> str | None:
    """Return an evidence_ref in canonical form, `packet:<uuid>` or `sha256:<hex>` in lower case; else None."""
    return _canonical(text) if len(text) <= _REFERENCE_LENGTH else None


def packet_cited(text: str) -> UUID | None:
    """Return the packet_id in an evidence_ref `packet:<uuid>`; None in any other text."""
    return _packet_cited(text) if len(text) <= _REFERENCE_LENGTH else None


# Memoised, as rules and session read the references of one packet in turn; a longer text would stay in memory.


@lru_cache(1024)
def _packet_cited(text: str) -> UUID | None:
    reference = reference_of(text) if text.startswith(PACKET_PREFIX) else None
    return None if reference is None else packet_named(reference)


@lru_cache(1024)
def _canonical(text: str) -> str | None:
    packet_reference = _PACKET.fullmatch(text)
    if packet_reference is not None:
        return PACKET_PREFIX + packet_reference[1].lower()
    return text.lower() if _ARTIFACT.fullmatch(text) else None


def refers_to(packet: Packet) -> tuple[str, ...]:
    """Return the packets and artifacts that a packet rests on beside its parent, each once, in the packet's order.

    They come from evidence_refs, the packet_ref_ids of an ARBITRATION's candidates, and the hash of an ARTIFACT
    (another ARTIFACT with the same bytes stands and falls with it).
    """
    return tuple(dict.fromkeys(_referred(packet)))


def defines(packet: Packet) -> tuple[str, ...]:
    """Return the names that others can refer to: an ARTIFACT's hash, the claims of a CLAIM or TASK_IR."""
    # The types first: isinstance costs a microsecond where it says no (pydantic's metaclass runs Python).
    if packet.packet_type not in _DEFINING:
        return ()
    payload = packet.payload
    if isinstance(payload, ArtifactPayload):
        return (payload.artifact_hash,)
    if isinstance(payload, ClaimPayload):
        return (CLAIM_PREFIX + payload.claim_id,)
    if isinstance(payload, TaskIrPayload):
        claims = (CLAIM_PREFIX + one.id for one in payload.objects if isinstance(one, IrClaim))
        return tuple(dict.fromkeys(claims))
    return ()


def packet_named(reference: str) -> UUID | None:
    """Return the packet_id in a reference `packet:<uuid>`; None in any other reference."""
    return _packet_named(reference) if reference.startswith(PACKET_PREFIX) else None


@lru_cache(1024)
def _packet_named(reference: str) -> UUID:
    return UUID(reference.removeprefix(PACKET_PREFIX))


def _referred(packet: Packet) -> Iterator[str]:
    if packet.proof_bundle is not None:
        for text in packet.proof_bundle.evidence_refs:
            reference = reference_of(text)
            if reference is not None:
                yield reference
    if packet.packet_type is PacketType.ARBITRATION:
        for candidate in packet.payload_as(ArbitrationPayload).candidates:
            yield from (f"{PACKET_PREFIX}{packet_id}" for packet_id in candidate.packet_ref_ids)
    elif packet.packet_type is PacketType.ARTIFACT:
        yield packet.payload_as(ArtifactPayload).artifact_hash


def request_of(packet: Packet) -> AgentRequest | None:
    """Return what an ASK to agents requests; None for every other packet."""
    payload = packet.payload
    return payload.request if isinstance(payload, SignalPayload) else None

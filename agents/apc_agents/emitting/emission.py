"""Builds the packets that an agent emits: what a reply inherits from its cause, and what it may say itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

from pydantic import JsonValue, ValidationError

from apc_agents.errors import EmitRefused
from apc_agents.phase import Sessions
from apc_agents.receiving.delivery import is_refusal
from apc_contracts.envelope.packet import (
    PACKET_TYPES,
    TYPE_OF_PAYLOAD,
    Actor,
    Lineage,
    Packet,
    ProofBundle,
    Recipient,
    Routing,
    Trace,
)
from apc_contracts.identity.ids import new_packet_id, reply_id
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    PROTOCOL_VERSION,
    SUBSTRATE_RECIPIENT,
    Channel,
    DeliveryMode,
    RunPhase,
)
from apc_contracts.wire.schema_errors import refusal_of

ALL: Final = ALL_RECIPIENTS
"""Every member of the session that handles the type (BROADCAST)."""
SUBSTRATE: Final = SUBSTRATE_RECIPIENT
"""The stream that any agent may read (SUBSTRATE)."""
DEFAULT_TTL = timedelta(minutes=10)
DEFAULT_PRIORITY = 4
"""The highest that takes the normal queue."""

Destination = str | Recipient | Sequence[str | Recipient]


class Ancestry(Enum):
    """Says that a packet has no parent although a packet caused it."""

    ROOT = "root"


ROOT: Final = Ancestry.ROOT


@dataclass(frozen=True, slots=True)
class KnownParent:
    """A parent of which no more is left than its id and its root."""

    packet_id: UUID
    root_packet_id: UUID


Parent = UUID | Packet[Any] | KnownParent | Ancestry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a handler says of a packet; None = inherit, or leave out."""

    payload: Payload
    to: Destination | None = None
    parent: Parent = None
    confidence: float = 1.0
    symbolic_keys: Sequence[str] = ()
    capability_tags: Sequence[str] | None = None
    lineage: Lineage | None = None
    proof_bundle: ProofBundle | None = None
    priority: int = DEFAULT_PRIORITY
    ttl: timedelta = DEFAULT_TTL
    requires_ack: bool = False
    ack_timeout: timedelta | None = None
    retry_limit: int | None = None
    run_phase: RunPhase | None = None
    generation: int | None = None
    session_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    packet_id: UUID | None = None
    channel: Channel = Channel.INTER_AGENT
    metadata: Mapping[str, JsonValue] | None = None


@dataclass(frozen=True, slots=True)
class Built:
    """A packet, and the cause and ordinal that its id was derived from."""

    packet: Packet[Any]
    cause: UUID | None = None
    ordinal: int | None = None


class Builder:
    """Builds packets of one agent."""

    def __init__(self, actor: Actor, sessions: Sessions) -> None:
        self._actor = actor
        self._sessions = sessions

    @property
    def agent_id(self) -> str:
        """The agent whose packets are built."""
        return self._actor.agent_id

    def build(self, draft: Draft, cause: Packet[Any] | None, ordinal: int) -> Built:
        """The packet of a draft.

        Its id follows from the cause and the ordinal, so that a handler that runs again makes it again. Two kinds
        have a fresh id and are roots unless a parent is named, because the session knows no cause of theirs:
        packets into another session, and what follows from the gate's NACK of a refused packet.

        Raises:
            EmitRefused: SCHEMA_INVALID, or no recipient or session to inherit.
        """
        if cause is not None and draft.session_id not in (None, cause.trace.session_id):
            cause = None
        known_cause = None if cause is None or is_refusal(cause) else cause.packet_id
        if known_cause is None and draft.parent is None:
            draft = replace(draft, parent=ROOT)
        if draft.packet_id is not None or known_cause is None:
            built = Built(self._packet(draft, cause, draft.packet_id or new_packet_id()))
        else:
            packet_id = reply_id(known_cause, self._actor.agent_id, ordinal)
            built = Built(self._packet(draft, cause, packet_id), known_cause, ordinal)
        self._sessions.note_root(built.packet)
        return built

    def _packet(self, draft: Draft, cause: Packet[Any] | None, packet_id: UUID) -> Packet[Any]:
        try:
            return self._validated(draft, cause, packet_id)
        except ValidationError as error:
            refused = refusal_of(error)
            raise EmitRefused(refused.code, refused.path, refused.message) from error

    def _validated(self, draft: Draft, cause: Packet[Any] | None, packet_id: UUID) -> Packet[Any]:
        packet_type = TYPE_OF_PAYLOAD.get(type(draft.payload))
        if packet_type is None:
            raise EmitRefused("SCHEMA_INVALID", "payload", f"{type(draft.payload).__name__} is no payload class")
        trace = self._trace(draft, cause, packet_id)
        recipients = _recipients(draft.to, cause)
        run_phase = draft.run_phase or self._sessions.of(trace.session_id).moment.run_phase
        return PACKET_TYPES[packet_type](
            protocol_version=PROTOCOL_VERSION,
            packet_id=packet_id,
            packet_type=packet_type,
            channel=draft.channel,
            run_phase=run_phase,
            created_at=datetime.now(UTC),
            sender=self._actor,
            recipients=recipients,
            trace=trace,
            routing=_routing(draft, recipients),
            confidence=draft.confidence,
            symbolic_keys=tuple(draft.symbolic_keys),
            capability_tags=None if draft.capability_tags is None else tuple(draft.capability_tags),
            lineage=draft.lineage,
            proof_bundle=draft.proof_bundle,
            payload=draft.payload,
            metadata=draft.metadata,
        )

    def _trace(self, draft: Draft, cause: Packet[Any] | None, packet_id: UUID) -> Trace:
        inherited = cause.trace if cause else None
        session_id = draft.session_id or (inherited.session_id if inherited else None)
        if session_id is None:
            raise EmitRefused("SCHEMA_INVALID", "trace.session_id", "nothing caused this packet: give session_id")
        run_id = draft.run_id or (inherited.run_id if inherited else session_id)
        task_id = draft.task_id or (inherited.task_id if inherited else run_id)
        parent_id, root_id = self._ancestors(draft.parent, cause, packet_id)
        moment = self._sessions.of(session_id).moment
        return Trace(
            session_id=session_id,
            run_id=run_id,
            task_id=task_id,
            root_packet_id=root_id,
            parent_packet_id=parent_id,
            generation=moment.generation if draft.generation is None else draft.generation,
            step=moment.step,
            vector_clock=self._sessions.tick(session_id),
        )

    def _ancestors(self, parent: Parent, cause: Packet[Any] | None, packet_id: UUID) -> tuple[UUID | None, UUID]:
        if parent is None:
            parent = cause or ROOT
        if isinstance(parent, Ancestry):
            return None, packet_id
        if isinstance(parent, KnownParent):
            return parent.packet_id, parent.root_packet_id
        if isinstance(parent, Packet):
            return parent.packet_id, parent.trace.root_packet_id
        root = self._sessions.root_of(parent) or (cause.trace.root_packet_id if cause else None)
        if root is None:
            raise EmitRefused(
                "SCHEMA_INVALID",
                "trace.root_packet_id",
                f"the root of parent {parent} is not known: give the packet",
            )
        return parent, root


def _recipients(to: Destination | None, cause: Packet[Any] | None) -> tuple[Recipient, ...]:
    if to is None:
        if cause is None:
            raise EmitRefused("UNROUTABLE", "recipients", "nothing caused this packet: say to whom it goes")
        return (Recipient(agent_id=cause.sender.agent_id),)
    listed = (to,) if isinstance(to, str | Recipient) else to
    return tuple(Recipient(agent_id=one) if isinstance(one, str) else one for one in listed)


def _routing(draft: Draft, recipients: Sequence[Recipient]) -> Routing:
    timeout = draft.ack_timeout
    return Routing(
        delivery_mode=_delivery_mode(recipients),
        priority=draft.priority,
        ttl_ms=_milliseconds(draft.ttl),
        requires_ack=draft.requires_ack,
        ack_timeout_ms=None if timeout is None else _milliseconds(timeout),
        retry_limit=draft.retry_limit,
    )


def _delivery_mode(recipients: Sequence[Recipient]) -> DeliveryMode:
    if len(recipients) != 1:
        return DeliveryMode.MULTICAST
    special = {ALL: DeliveryMode.BROADCAST, SUBSTRATE: DeliveryMode.SUBSTRATE}
    return special.get(recipients[0].agent_id, DeliveryMode.DIRECT)


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))

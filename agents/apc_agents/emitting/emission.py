"""Builds the packets that an agent emits: what a reply inherits from its cause, and what it may say itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from pydantic import ValidationError

from apc_agents.emitting.draft import (
    ALL,
    DEFAULT_PRIORITY,
    DEFAULT_TTL,
    ROOT,
    SUBSTRATE,
    Ancestry,
    Destination,
    Draft,
    EmitOptions,
    KnownParent,
    Parent,
)
from apc_agents.errors import EmitRefused
from apc_agents.running.delivery import is_refusal
from apc_agents.session_phase import KnownSessions
from apc_contracts.identity.ids import new_packet_id, reply_id
from apc_contracts.packet import PACKET_TYPES, TYPE_OF_PAYLOAD, Actor, Packet, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import DecisionPayload, MessagePayload, OpenEvalPayload, Payload, SignalFields
from apc_contracts.payloads.session_signals import first_new_field
from apc_contracts.vocabulary import (
    PROTOCOL_1_1,
    PROTOCOL_VERSION,
    SIGNALS_OF_1_1,
    Channel,
    DeliveryMode,
)
from apc_contracts.wire.parsing import refusal_of


@dataclass(frozen=True, slots=True)
class Built:
    """A packet, and the cause and ordinal that its id was derived from."""

    packet: Packet
    cause: UUID | None = None
    ordinal: int | None = None


class Builder:
    """Builds packets of one agent."""

    def __init__(self, actor: Actor, sessions: KnownSessions) -> None:
        self._actor = actor
        self._sessions = sessions

    @property
    def agent_id(self) -> str:
        """The agent whose packets are built."""
        return self._actor.agent_id

    def names_contract(self, packet: Packet) -> bool:
        """Return whether the packet's session has its own contract, as far as this worker has heard."""
        return bool(self._sessions.of(packet.trace.session_id).moment.contract)

    def build(self, draft: Draft, cause: Packet | None, ordinal: int) -> Built:
        """Return the packet of a draft.

        Its id follows from the cause and the ordinal, so that a handler that runs again makes it again. Two kinds
        have a fresh id and are roots unless a parent is named, because the session knows no cause of theirs:
        packets into another session, and what follows from the gate's NACK of a refused packet.

        Raises:
            EmitRefused: SCHEMA_INVALID, or no recipient or session to inherit.
        """
        if cause is not None and draft.options.get("session_id") not in (None, cause.trace.session_id):
            cause = None
        known_cause = None if cause is None or is_refusal(cause) else cause.packet_id
        parent = draft.options.get("parent") or (ROOT if cause is None or known_cause is None else cause)
        given_id = draft.options.get("packet_id")
        if given_id is not None or known_cause is None:
            built = Built(self._packet(draft, cause, parent, given_id or new_packet_id()))
        else:
            packet_id = reply_id(known_cause, self._actor.agent_id, ordinal)
            built = Built(self._packet(draft, cause, parent, packet_id), known_cause, ordinal)
        self._sessions.note_root(built.packet)
        self._sessions.note_start(built.packet)
        return built

    def _packet(self, draft: Draft, cause: Packet | None, parent: Parent, packet_id: UUID) -> Packet:
        try:
            return self._validated(draft, cause, parent, packet_id)
        except ValidationError as error:
            refused = refusal_of(error)
            raise EmitRefused(refused.code, refused.path, refused.message) from error

    def _validated(self, draft: Draft, cause: Packet | None, parent: Parent, packet_id: UUID) -> Packet:
        packet_type = TYPE_OF_PAYLOAD.get(type(draft.payload))
        if packet_type is None:
            raise EmitRefused("SCHEMA_INVALID", "payload", f"{type(draft.payload).__name__} is no payload class")
        options = draft.options
        trace = self._trace(options, cause, parent, packet_id)
        recipients = _recipients(options.get("to"), cause)
        tags = options.get("capability_tags")
        run_phase = options.get("run_phase") or self._sessions.of(trace.session_id).moment.run_phase
        return PACKET_TYPES[packet_type](
            protocol_version=_version(draft.payload),
            packet_id=packet_id,
            packet_type=packet_type,
            channel=options.get("channel", Channel.INTER_AGENT),
            run_phase=run_phase,
            created_at=datetime.now(UTC),
            sender=self._actor,
            recipients=recipients,
            trace=trace,
            routing=_routing(options, recipients),
            confidence=options.get("confidence", 1.0),
            symbolic_keys=tuple(options.get("symbolic_keys", ())),
            capability_tags=None if tags is None else tuple(tags),
            lineage=options.get("lineage"),
            proof_bundle=options.get("proof_bundle"),
            payload=draft.payload,
            metadata=options.get("metadata"),
        )

    def _trace(self, options: EmitOptions, cause: Packet | None, parent: Parent, packet_id: UUID) -> Trace:
        inherited = cause.trace if cause else None
        session_id = options.get("session_id") or (inherited.session_id if inherited else None)
        if session_id is None:
            raise EmitRefused("SCHEMA_INVALID", "trace.session_id", "nothing caused this packet: give session_id")
        run_id = options.get("run_id") or (inherited.run_id if inherited else session_id)
        task_id = options.get("task_id") or (inherited.task_id if inherited else run_id)
        parent_id, root_id = self._ancestors(parent, cause, packet_id)
        moment, generation = self._sessions.of(session_id).moment, options.get("generation")
        return Trace(
            session_id=session_id,
            run_id=run_id,
            task_id=task_id,
            root_packet_id=root_id,
            parent_packet_id=parent_id,
            generation=moment.generation if generation is None else generation,
            step=moment.step,
            vector_clock=self._sessions.tick(session_id),
        )

    def _ancestors(self, parent: Parent, cause: Packet | None, packet_id: UUID) -> tuple[UUID | None, UUID]:
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


def _recipients(to: Destination | None, cause: Packet | None) -> tuple[Recipient, ...]:
    if to is None:
        if cause is None:
            raise EmitRefused("UNROUTABLE", "recipients", "nothing caused this packet: say to whom it goes")
        return (Recipient(agent_id=cause.sender.agent_id),)
    listed = (to,) if isinstance(to, str | Recipient) else to
    return tuple(Recipient(agent_id=one) if isinstance(one, str) else one for one in listed)


def _routing(options: EmitOptions, recipients: Sequence[Recipient]) -> Routing:
    timeout = options.get("ack_timeout")
    return Routing(
        delivery_mode=_delivery_mode(recipients),
        priority=options.get("priority", DEFAULT_PRIORITY),
        ttl_ms=_milliseconds(options.get("ttl", DEFAULT_TTL)),
        requires_ack=options.get("requires_ack", False),
        ack_timeout_ms=None if timeout is None else _milliseconds(timeout),
        retry_limit=options.get("retry_limit"),
    )


def _delivery_mode(recipients: Sequence[Recipient]) -> DeliveryMode:
    if len(recipients) != 1:
        return DeliveryMode.MULTICAST
    special = {ALL: DeliveryMode.BROADCAST, SUBSTRATE: DeliveryMode.SUBSTRATE}
    return special.get(recipients[0].agent_id, DeliveryMode.DIRECT)


def _milliseconds(duration: timedelta) -> int:
    return round(duration / timedelta(milliseconds=1))


def _version(payload: Payload) -> str:
    """Return the oldest version of the protocol that has everything in this payload."""
    if isinstance(payload, MessagePayload | OpenEvalPayload) or (
        isinstance(payload, DecisionPayload) and payload.result is not None
    ):
        return PROTOCOL_1_1
    if isinstance(payload, SignalFields) and payload.signal in SIGNALS_OF_1_1:
        return PROTOCOL_1_1
    session = payload.session if isinstance(payload, SignalFields) else None
    return PROTOCOL_VERSION if session is None or first_new_field(session) is None else PROTOCOL_1_1

"""Rules for UNROUTABLE, decided from the registry before anything is logged as accepted."""

from collections.abc import Iterable, Mapping
from typing import Literal

from apc_contracts.admission.case import Case
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.judging.session_view import SessionView
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import Packet, Recipient, request_of
from apc_contracts.payloads.by_type import MessagePayload, SignalPayload, TransferPayload
from apc_contracts.payloads.session_signals import ROLE_PREFIX
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    CONTROL_TYPES,
    ORCHESTRATOR,
    SUBSTRATE_RECIPIENT,
    Channel,
    DeliveryMode,
    PacketType,
    Signal,
)

Unreachable = Literal["unknown", "revoked", "deaf", "foreign", "person", "client", "agent", "nobody"]

_ADVICE: dict[Unreachable, str] = {
    "unknown": "is not registered: name a registered agent",
    "revoked": "was revoked: name another agent",
    "deaf": "does not handle {}: name an agent that does",
    "foreign": "does not take this schema: register the agent with it",
    "person": "is a person, and has no inbox: only a question reaches it",
    "client": "is the client of a run, which reads the log and has no inbox: name an agent",
    "agent": "is an agent: a question goes to people, and a request to agents",
    "nobody": "reaches nobody: a question needs a registered person with this role, a request a member that takes it",
}
_RESERVED_RECIPIENT = {
    DeliveryMode.BROADCAST: ALL_RECIPIENTS,
    DeliveryMode.SUBSTRATE: SUBSTRATE_RECIPIENT,
}


def reaches_its_swarm(case: Case) -> Refusal | None:
    """Refuse a TRANSFER to agents outside `to_swarm`.

    top_k counts by to_swarm, so the recipients must match it.
    """
    packet, registry = case.packet, case.facts.registry or {}
    for index, recipient in enumerate(packet.recipients):
        swarm_id = swarm_of(recipient, registry)
        if swarm_id is None or swarm_id == packet.payload_as(TransferPayload).to_swarm:
            continue
        to_swarm, name = packet.payload_as(TransferPayload).to_swarm, recipient.agent_id
        if name == ALL_RECIPIENTS:
            message = f"a TRANSFER to {name} must name its swarm: set swarm_id {to_swarm}"
        else:
            message = f"{name} is of swarm {swarm_id}, not of {to_swarm}: name an agent of payload.to_swarm"
        return Refusal("UNROUTABLE", "reaches_its_swarm", f"recipients[{index}]", message)
    return None


def swarm_of(recipient: Recipient, registry: Mapping[str, Registration]) -> str | None:
    """Return the recipient's swarm, '' for a BROADCAST to all, None where no swarm is reached directly.

    None where no swarm is reached directly.
    """
    if recipient.agent_id == ALL_RECIPIENTS:
        return recipient.swarm_id or ""
    registration = registry.get(recipient.agent_id)
    return None if registration is None or recipient.agent_id == ORCHESTRATOR else registration.swarm_id


def is_routable(case: Case) -> Refusal | None:
    """Refuse recipients that do not fit the delivery mode, are unregistered or revoked, or do not handle the type."""
    packet = case.packet
    recipients, mode = packet.recipients, packet.routing.delivery_mode
    if packet.channel is Channel.INTRA_AGENT:
        return _stays_inside(case)
    reserved = _RESERVED_RECIPIENT.get(mode)
    if reserved is not None:
        if len(recipients) == 1 and recipients[0].agent_id == reserved:
            return None
        return _refusal("recipients", f"{mode} has the one recipient {reserved}")
    if mode is DeliveryMode.DIRECT and len(recipients) != 1:
        return _refusal("recipients", "DIRECT has one recipient: use MULTICAST for several")
    return _first_unroutable(case, recipients)


def _first_unroutable(case: Case, recipients: tuple[Recipient, ...]) -> Refusal | None:
    packet = case.packet
    for index, recipient in enumerate(recipients):
        agent_id = recipient.agent_id
        why = why_unreachable(case, agent_id)
        if why is not None:
            return _refusal(f"recipients[{index}]", f"{agent_id} {_ADVICE[why].format(packet.packet_type)}")
    if len(recipients) > 1:
        return _first_double(recipients)
    return None


def _first_double(recipients: tuple[Recipient, ...]) -> Refusal | None:
    seen: set[str] = set()
    for index, recipient in enumerate(recipients):
        if recipient.agent_id in seen:
            return _refusal(f"recipients[{index}]", f"{recipient.agent_id} is listed twice: list it once")
        seen.add(recipient.agent_id)
    return None


def why_unreachable(case: Case, agent_id: str) -> Unreachable | None:
    """Return why a recipient that the packet names cannot get it; None when it can."""
    registry, packet = case.facts.registry or {}, case.packet
    found, is_to_people = registry.get(agent_id), is_question(packet)
    if agent_id == ORCHESTRATOR:
        return "agent" if is_ask(packet) else None
    if found is None and asks_role(packet) and len(packet.recipients) == 1:
        return None if with_role(packet, registry, case.session) else "nobody"
    why = unreachable(found, packet)
    if why is None and found is not None and is_to_people != (found.kind is Kind.PERSON):
        return "agent" if is_to_people else "person"
    return why


def is_ask(packet: Packet) -> bool:
    """Return whether the packet is a SIGNAL that asks agents or people; `is_question` knows those to people."""
    payload = packet.payload
    return isinstance(payload, SignalPayload) and payload.signal is Signal.ASK


def is_question(packet: Packet) -> bool:
    """Return whether the packet is an ASK to people, which the orchestrator applies itself."""
    return is_ask(packet) and packet.payload_as(SignalPayload).question is not None


def asks_role(packet: Packet) -> bool:
    """Return whether the packet is an ASK to everybody with a role."""
    return packet.recipients[0].agent_id.startswith(ROLE_PREFIX) and is_ask(packet)


def with_role(packet: Packet, registry: Mapping[str, Registration], session: SessionView | None) -> tuple[str, ...]:
    """Return whom an ASK to `role:NAME` reaches: people, or members that take the request; never its sender."""
    role, sender = packet.recipients[0].agent_id.removeprefix(ROLE_PREFIX), packet.sender.agent_id
    kind = Kind.PERSON if is_question(packet) else Kind.AGENT
    reached = []
    for one in registry.values():
        if one.kind is not kind or one.role != role or one.agent_id == sender or unreachable(one, packet) is not None:
            continue
        if kind is Kind.PERSON or session is None or session.is_member(one.agent_id):
            reached.append(one.agent_id)
    return tuple(sorted(reached))


def reached(
    packet: Packet, members: Iterable[str], registry: Mapping[str, Registration], session: SessionView | None
) -> tuple[str, ...]:
    """Return the agent_ids that a packet reaches, in a fixed order: of a BROADCAST the members that it means."""
    first = packet.recipients[0]
    if asks_role(packet):
        return with_role(packet, registry, session)
    if first.agent_id != ALL_RECIPIENTS:
        return tuple(recipient.agent_id for recipient in packet.recipients)
    found = []
    for agent_id in sorted(members):
        registration = registry.get(agent_id)
        if registration is None or registration.is_revoked or agent_id in (packet.sender.agent_id, ORCHESTRATOR):
            continue
        if not registration.has_inbox:
            continue
        is_meant = first.swarm_id in (None, registration.swarm_id) and first.role in (None, registration.role)
        if is_meant and _takes(registration, packet):
            found.append(agent_id)
    return tuple(found)


def _takes(registration: Registration, packet: Packet) -> bool:
    payload = packet.payload
    if isinstance(payload, MessagePayload) and not registration.accepts(payload.schema_id):
        return False
    return packet.packet_type in CONTROL_TYPES or packet.packet_type in registration.handles


def unreachable(registration: Registration | None, packet: Packet) -> Unreachable | None:
    """Return why an agent cannot get a packet of this type and schema; None when it can."""
    if registration is None:
        return "unknown"
    if registration.is_revoked:
        return "revoked"
    packet_type = packet.packet_type
    if packet_type not in registration.handles and packet_type not in CONTROL_TYPES:
        return "deaf"
    if registration.is_run_client and (is_ask(packet) or len(packet.recipients) > 1):
        return "client"
    if packet_type is PacketType.MESSAGE and not registration.accepts(packet.payload_as(MessagePayload).schema_id):
        return "foreign"
    request = request_of(packet) if packet_type is PacketType.SIGNAL else None
    return None if request is None or registration.accepts(request.schema_id) else "foreign"


def _stays_inside(case: Case) -> Refusal | None:
    """Refuse an INTRA_AGENT packet to another agent: it is not routed, so `handles` does not matter."""
    packet = case.packet
    if packet.recipients[0].agent_id == case.sender_id and packet.routing.delivery_mode is DeliveryMode.DIRECT:
        return None
    return _refusal("recipients[0]", f"INTRA_AGENT goes DIRECT to the sender itself: name {case.sender_id}")


def _refusal(path: str, message: str) -> Refusal:
    return Refusal("UNROUTABLE", "is_routable", path, message)

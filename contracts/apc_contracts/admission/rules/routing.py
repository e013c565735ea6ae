"""Rules for UNROUTABLE, decided from the registry before anything is logged as accepted."""

from collections.abc import Mapping
from typing import Literal

from apc_contracts.admission.case import Case
from apc_contracts.envelope.packet import Packet, Recipient
from apc_contracts.identity.registry import Kind, Registration
from apc_contracts.judging.verdict import Refusal
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

Unreachable = Literal["unknown", "revoked", "deaf", "foreign", "person", "agent", "nobody"]

_ADVICE: dict[Unreachable, str] = {
    "unknown": "is not registered: name a registered agent",
    "revoked": "was revoked: name another agent",
    "deaf": "does not handle {}: name an agent that does",
    "foreign": "does not take this schema: register the agent with it",
    "person": "is a person, and has no inbox: only an ASK reaches it",
    "agent": "is an agent: an ASK goes to people",
    "nobody": "reaches nobody: register a person with this role",
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
    found, is_ask = registry.get(agent_id), is_question(packet)
    if agent_id == ORCHESTRATOR:
        return "agent" if is_ask else None
    if is_ask and found is None and agent_id.startswith(ROLE_PREFIX) and len(packet.recipients) == 1:
        return None if people_with_role(agent_id, packet, registry) else "nobody"
    why = unreachable(found, packet)
    if why is None and found is not None and is_ask != (found.kind is Kind.PERSON):
        return "agent" if is_ask else "person"
    return why


def is_question(packet: Packet) -> bool:
    """Return whether the packet is an ASK to people, which the gate applies itself."""
    payload = packet.payload
    return isinstance(payload, SignalPayload) and payload.signal is Signal.ASK


def asks_role(packet: Packet) -> bool:
    """Return whether the packet is an ASK to everybody with a role."""
    return packet.recipients[0].agent_id.startswith(ROLE_PREFIX) and is_question(packet)


def people_with_role(name: str, packet: Packet, registry: Mapping[str, Registration]) -> tuple[str, ...]:
    """Return the people whom an ASK to `role:NAME` reaches: all with that role but the sender."""
    role, sender = name.removeprefix(ROLE_PREFIX), packet.sender.agent_id
    people = (one for one in registry.values() if one.kind is Kind.PERSON and not one.is_revoked)
    return tuple(sorted(one.agent_id for one in people if one.role == role and one.agent_id != sender))


def unreachable(registration: Registration | None, packet: Packet) -> Unreachable | None:
    """Return why an agent cannot get a packet of this type and schema; None when it can."""
    if registration is None:
        return "unknown"
    if registration.is_revoked:
        return "revoked"
    packet_type = packet.packet_type
    if packet_type not in registration.handles and packet_type not in CONTROL_TYPES:
        return "deaf"
    if packet_type is PacketType.MESSAGE and not registration.accepts(packet.payload_as(MessagePayload).schema_id):
        return "foreign"
    return None


def _stays_inside(case: Case) -> Refusal | None:
    """Refuse an INTRA_AGENT packet to another agent: it is not routed, so `handles` does not matter."""
    packet = case.packet
    if packet.recipients[0].agent_id == case.sender_id and packet.routing.delivery_mode is DeliveryMode.DIRECT:
        return None
    return _refusal("recipients[0]", f"INTRA_AGENT goes DIRECT to the sender itself: name {case.sender_id}")


def _refusal(path: str, message: str) -> Refusal:
    return Refusal("UNROUTABLE", "is_routable", path, message)

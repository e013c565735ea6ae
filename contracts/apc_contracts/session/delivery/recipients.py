"""Who a packet goes to: `_all` expanded from the session's members and the registry."""

from collections.abc import Mapping

from apc_contracts.admission.rules.routing import asks_role, is_ask, with_role
from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.registry import CLIENT, Registration
from apc_contracts.payloads.by_type import MessagePayload
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import ALL_RECIPIENTS, CONTROL_TYPES, ORCHESTRATOR, Channel, PacketType


def handles(registration: Registration, packet_type: PacketType) -> bool:
    """Return whether an agent takes packets of this type; every agent takes the control types."""
    return packet_type in CONTROL_TYPES or packet_type in registration.handles


def _takes(registration: Registration, packet: Packet) -> bool:
    payload = packet.payload
    if isinstance(payload, MessagePayload) and not registration.accepts(payload.schema_id):
        return False
    return handles(registration, packet.packet_type)


def ends_at_gate(packet: Packet) -> bool:
    """Return whether a packet has the form of one that ends at the gate, if its recipient is the client of a run."""
    first, is_control = packet.recipients[0], packet.packet_type in CONTROL_TYPES
    is_direct = packet.channel is Channel.INTER_AGENT and len(packet.recipients) == 1
    return is_control and is_direct and first.agent_id.startswith(f"{CLIENT}-") and not is_ask(packet)


def resolve_recipients(packet: Packet, session: Session, registry: Mapping[str, Registration]) -> tuple[str, ...]:
    """Return the agent_ids a packet is delivered to, in a fixed order; the sender of a BROADCAST is left out.

    A BROADCAST that no member handles goes to the orchestrator alone: it is never UNROUTABLE, and it comes to an end.
    So does what a client of a run is told, because the client reads the log.
    """
    first = packet.recipients[0]
    if asks_role(packet):
        return with_role(packet, registry, session)
    if first.agent_id != ALL_RECIPIENTS:
        named = registry.get(first.agent_id)
        if named is not None and named.is_run_client and ends_at_gate(packet):
            return (ORCHESTRATOR,)
        return tuple(recipient.agent_id for recipient in packet.recipients)
    found = []
    for agent_id in sorted(session.members):
        registration = registry.get(agent_id)
        if registration is None or registration.is_revoked or agent_id in (packet.sender.agent_id, ORCHESTRATOR):
            continue
        if not registration.has_inbox:
            continue
        is_meant = first.swarm_id in (None, registration.swarm_id) and first.role in (None, registration.role)
        if is_meant and _takes(registration, packet):
            found.append(agent_id)
    return tuple(found) or (ORCHESTRATOR,)

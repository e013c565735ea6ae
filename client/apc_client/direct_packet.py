"""The packet that a person or an operator sends with one command: urgent, to one recipient, without an ACK."""

from datetime import UTC, datetime
from uuid import UUID

from apc_contracts.envelope.packet import (
    PACKET_TYPES,
    TYPE_OF_PAYLOAD,
    Actor,
    Packet,
    Recipient,
    Routing,
    Trace,
)
from apc_contracts.identity.registry import Registration
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import PROTOCOL_VERSION, Channel, DeliveryMode, RunPhase

_URGENT = 9


def direct_packet(
    sender: Registration,
    payload: Payload,
    recipient: str,
    trace: Trace,
    *,
    packet_id: UUID,
    run_phase: RunPhase,
    ttl_ms: int,
    protocol_version: str = PROTOCOL_VERSION,
    expires_at: datetime | None = None,
) -> Packet:
    """Return the packet of a registered sender, created now."""
    packet_type = TYPE_OF_PAYLOAD[type(payload)]
    return PACKET_TYPES[packet_type](
        protocol_version=protocol_version,
        packet_id=packet_id,
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=run_phase,
        created_at=datetime.now(UTC),
        expires_at=expires_at,
        sender=Actor(agent_id=sender.agent_id, role=sender.role, swarm_id=sender.swarm_id),
        recipients=(Recipient(agent_id=recipient),),
        trace=trace,
        routing=Routing(delivery_mode=DeliveryMode.DIRECT, priority=_URGENT, ttl_ms=ttl_ms, requires_ack=False),
        confidence=1.0,
        symbolic_keys=(),
        payload=payload,
    )

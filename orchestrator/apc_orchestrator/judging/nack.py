"""The answer to a refusal: a NACK to the authenticated sender. It has no log entry: the refused row covers it."""

from datetime import datetime
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.envelope.packet import Actor, NackPacket, Packet, Recipient, Routing, Trace
from apc_contracts.identity.ids import reply_id
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.verdict import Refusal
from apc_contracts.payloads.by_type import NackPayload
from apc_contracts.vocabulary import (
    ORCHESTRATOR,
    PROTOCOL_VERSION,
    AckStatus,
    Channel,
    DeliveryMode,
    PacketType,
    RunPhase,
)

UNKNOWN = "_unknown"
NACK_ORDINAL = "nack"
PRIORITY = 9


def nack_packet(
    refused_id: UUID,
    refused: NackPacket | Packet | None,
    refusal: Refusal,
    sender: Registration,
    now: datetime,
    contract: Contract,
) -> NackPacket:
    """Return the NACK of a refused packet.

    `refused` is None when its bytes could not be read (ids `_unknown`, own root).
    """
    packet_id = reply_id(refused_id, ORCHESTRATOR, NACK_ORDINAL)
    is_deferred = refusal.code in contract.refusals.deferred
    return NackPacket(
        protocol_version=PROTOCOL_VERSION,
        packet_id=packet_id,
        packet_type=PacketType.NACK,
        channel=Channel.INTER_AGENT,
        run_phase=RunPhase.RESEARCH if refused is None else refused.run_phase,
        created_at=now,
        sender=Actor(agent_id=ORCHESTRATOR, role=ORCHESTRATOR, swarm_id=ORCHESTRATOR),
        recipients=(Recipient(agent_id=sender.agent_id),),
        trace=_trace(packet_id, refused_id, refused),
        routing=Routing(
            delivery_mode=DeliveryMode.DIRECT,
            priority=PRIORITY,
            ttl_ms=contract.session.emission_ttl_ms,
            requires_ack=False,
        ),
        confidence=1.0,
        symbolic_keys=(),
        payload=NackPayload(
            acked_packet_id=refused_id,
            ack_status=AckStatus.DEFERRED if is_deferred else AckStatus.REJECTED,
            reason=refusal.reason,
        ),
        metadata={"refusal": refusal.document},
    )


def _trace(packet_id: UUID, refused_id: UUID, refused: Packet | None) -> Trace:
    if refused is None:
        return Trace(
            session_id=UNKNOWN,
            run_id=UNKNOWN,
            task_id=UNKNOWN,
            root_packet_id=packet_id,
            generation=0,
            step=0,
        )
    return Trace(
        session_id=refused.trace.session_id,
        run_id=refused.trace.run_id,
        task_id=refused.trace.task_id,
        root_packet_id=refused.trace.root_packet_id,
        parent_packet_id=refused_id,
        generation=refused.trace.generation,
        step=refused.trace.step,
    )

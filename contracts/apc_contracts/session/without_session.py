"""Packets without a session: heartbeats, and packets refused under the name of a session that does not exist."""

from datetime import datetime
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.session_view import Identity
from apc_contracts.judging.verdict import Refusal, VerdictKind
from apc_contracts.session.delivery.lifecycle import ADMITTED, HANDED_OVER
from apc_contracts.session.session_effects import Hop
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import ReceivedPacket

ENDED = ["verification_pass", "non_promotable_complete"]


def identity_without_session(received: ReceivedPacket, refusal: Refusal, cause: UUID | None) -> Identity:
    """Return what is remembered of a packet that was refused before its session began."""
    packet = received.packet
    named = tuple(recipient.agent_id for recipient in packet.recipients)
    return Identity(
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        packet_type=packet.packet_type,
        sender=packet.sender.agent_id,
        swarm_id=packet.sender.swarm_id,
        recipients=named,
        addressed=named,
        cause=cause,
        root=packet.trace.root_packet_id,
        verdict=VerdictKind.REFUSED,
        refusal=refusal,
        run_phase=packet.run_phase,
        round=0,
        generation=packet.trace.generation,
        step=0,
    )


def hops_without_session(packet: Packet, refusal: Refusal | None, now: datetime) -> list[Hop]:
    """Return the whole life of a heartbeat, which the gate applies itself, or of a packet without a session."""
    sender = packet.sender.agent_id
    if refusal is not None:
        event, state = ("ttl_expired", "EXPIRED") if refusal.code == "EXPIRED" else ("policy_fail", "REJECTED_POLICY")
        return [_hop(packet, "", "DRAFT", state, ["emit", "schema_pass", event], sender, now)]
    return [
        _hop(packet, "", "DRAFT", "ROUTED", ADMITTED, sender, now),
        _hop(packet, ORCHESTRATOR, "ROUTED", "APPLIED", HANDED_OVER, ORCHESTRATOR, now),
        _hop(packet, ORCHESTRATOR, "APPLIED", "ARCHIVED", ENDED, ORCHESTRATOR, now),
    ]


def _hop(packet: Packet, recipient: str, before: str, after: str, events: list[str], actor: str, now: datetime) -> Hop:
    return Hop(packet.packet_id, recipient, 1, before, after, events, [now] * len(events), actor)

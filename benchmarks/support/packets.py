"""The typical packet: the 1.2 kB IDEA that the protocol document gives as its example."""

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from apc_bus.port import Message, Publication
from apc_bus.topology import INGRESS
from apc_contracts import (
    Actor,
    IdeaPayload,
    Packet,
    Recipient,
    Routing,
    SealedPacket,
    SignalPayload,
    Trace,
    new_packet_id,
    seal,
)
from apc_contracts.identity.ids import slot_of
from apc_contracts.packet import PACKET_TYPES, TYPE_OF_PAYLOAD
from apc_contracts.payloads.by_type import ExpectedImpact, FailureMode
from apc_contracts.payloads.session_signals import SessionSpec, SwarmSpec
from apc_contracts.vocabulary import PROTOCOL_VERSION, Channel, DeliveryMode, RunPhase, Signal

HOUR_MS = 3_600_000
TASK = "task-01"
_numbers = itertools.count()


def idea() -> IdeaPayload:
    """Return the example's payload, each under its own method_id: the loop guard refuses who repeats itself."""
    return IdeaPayload(
        method_id=f"method-gbdt-c{next(_numbers):012}",
        intent="Use calibrated gradient boosting on time-split features.",
        assumptions=("Label delay <= 7 days", "No future leakage in feature windows"),
        required_capabilities=("time_split_validation", "calibration", "drift_monitoring"),
        expected_impact=ExpectedImpact(quality_gain=0.12, cost_change=0.08, risk_change=-0.10),
        failure_modes=(
            FailureMode(
                id="fm-1",
                description="Temporal leakage from joined aggregates",
                mitigation="Feature window materialization and leakage test",
            ),
        ),
    )


def typical_packet(session_id: str, sender: Actor, recipients: Sequence[str]) -> Packet:
    """Return an IDEA with its own root from one agent to one or several."""
    return packet_of(session_id, sender, recipients, idea())


def start_packet(session_id: str, sender: Actor, swarms: Sequence[SwarmSpec]) -> Packet:
    """START of a session that stays in its first state: deadlines of an hour, no budget."""
    spec = SessionSpec(
        swarms=tuple(swarms),
        task_ids=(TASK,),
        generation_limit=24,
        generation_deadline_ms=HOUR_MS,
        state_deadline_ms=HOUR_MS,
    )
    return packet_of(session_id, sender, ("orchestrator",), SignalPayload(signal=Signal.START, session=spec))


def packet_of(
    session_id: str,
    sender: Actor,
    recipients: Sequence[str],
    payload: Any,
    *,
    version: str = PROTOCOL_VERSION,
    run_phase: RunPhase = RunPhase.RESEARCH,
) -> Packet:
    """Return a packet with its own root."""
    packet_type = TYPE_OF_PAYLOAD[type(payload)]
    packet_id = new_packet_id()
    return PACKET_TYPES[packet_type](
        protocol_version=version,
        packet_id=packet_id,
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=run_phase,
        created_at=datetime.now(UTC),
        sender=sender,
        recipients=tuple(Recipient(agent_id=one) for one in recipients),
        trace=Trace(
            session_id=session_id,
            run_id=f"run-{session_id}",
            task_id=TASK,
            root_packet_id=packet_id,
            generation=0,
            step=0,
        ),
        routing=Routing(
            delivery_mode=DeliveryMode.DIRECT if len(recipients) == 1 else DeliveryMode.MULTICAST,
            priority=4,
            ttl_ms=HOUR_MS,
            requires_ack=False,
        ),
        confidence=0.74,
        symbolic_keys=("predictive", "feature-selection", "calibration"),
        payload=payload,
    )


def publication(sealed: SealedPacket, user: str) -> Publication:
    """Return the message that takes a sealed packet to the orchestrator of its session."""
    packet = sealed.packet
    message = Message(
        sealed.body,
        message_id=str(packet.packet_id),
        type=packet.packet_type.value,
        correlation_id=str(packet.trace.root_packet_id),
        user_id=user,
    )
    return Publication(INGRESS, str(slot_of(packet.trace.session_id)), message)


def publications(session_id: str, sender: Actor, recipients: Sequence[str], user: str, count: int) -> list[Publication]:
    """Typical packets, sealed and ready to be sent."""
    return [publication(seal(typical_packet(session_id, sender, recipients)), user) for _ in range(count)]

"""The orchestrator's own packets: built here, sealed and judged by the gate like any other."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.identity.ids import reply_id, timer_id
from apc_contracts.packet import PACKET_TYPES, Actor, Lineage, Packet, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import SessionState
from apc_contracts.session.document import SessionDocument, TaskDocument, VerifiedCandidate
from apc_contracts.session.movement import Advance
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import (
    ALL_RECIPIENTS,
    ORCHESTRATOR,
    Channel,
    DeliveryMode,
    PacketType,
    Signal,
)

ORCHESTRATOR_SWARM = "orchestrator"
URGENT = 9
MOST_CANDIDATES = 400
"""Limit of candidates in one ARBITRATION: a packet of 256 KiB holds twice as many."""


def emission(
    session: Session,
    packet_type: PacketType,
    payload: Any,
    cause: UUID,
    now: datetime,
    contract: Contract,
    *,
    packet_id: UUID | None = None,
    parent: UUID | None = None,
    recipient: str = ALL_RECIPIENTS,
    symbolic_keys: Sequence[str] = (),
    lineage: Lineage | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
) -> Packet:
    """Return a packet of the orchestrator in this session.

    Its id follows from the cause and the session's own count.
    """
    document = session.document
    if packet_id is None:
        document.emitted += 1
    identity = session.identity(parent) if parent else None
    return PACKET_TYPES[packet_type](
        protocol_version=document.protocol_version,
        packet_id=packet_id or reply_id(cause, ORCHESTRATOR, document.emitted),
        packet_type=packet_type,
        channel=Channel.INTER_AGENT,
        run_phase=document.run_phase,
        created_at=now,
        expires_at=expires_at,
        sender=Actor(agent_id=ORCHESTRATOR, role="orchestrator", swarm_id=ORCHESTRATOR_SWARM),
        recipients=(Recipient(agent_id=recipient),),
        trace=_trace(document, parent, identity.root if identity else document.start_packet_id),
        routing=Routing(
            delivery_mode=DeliveryMode.BROADCAST if recipient == ALL_RECIPIENTS else DeliveryMode.DIRECT,
            priority=URGENT,
            ttl_ms=contract.session.emission_ttl_ms,
            requires_ack=False,
        ),
        confidence=1.0,
        symbolic_keys=tuple(symbolic_keys),
        lineage=lineage,
        payload=payload,
        metadata=metadata,
    )


def emit(
    moment: Advance,
    packet_type: PacketType,
    payload: Any,
    *,
    parent: UUID | None = None,
    recipient: str = ALL_RECIPIENTS,
    lineage: Lineage | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
) -> Packet:
    """Add a packet of the orchestrator to the effects of this call; return it."""
    packet = emission(
        moment.session,
        packet_type,
        payload,
        moment.cause,
        moment.now,
        moment.contract,
        parent=parent,
        recipient=recipient,
        lineage=lineage,
        metadata=metadata,
        expires_at=expires_at,
    )
    moment.effects.emissions.append(packet)
    return packet


def sync(session: Session, cause: UUID, now: datetime, contract: Contract) -> Packet:
    """Return SIGNAL SYNC to everyone: the state the session has reached."""
    document, work = session.document, session.work
    state = SessionState(
        state=document.state,
        run_phase=document.run_phase,
        round=document.round,
        generation=document.generation,
        step=document.step,
        paused=session.is_paused,
        scores=dict(session.verified_scores),
        subjects=subjects(document),
        contract=None if work is None else work.contract,
        deciders=None if work is None else tuple(work.deciders),
        reviewers=None if work is None else tuple(work.reviewers),
    )
    payload = SignalPayload(signal=Signal.SYNC, session=state)
    return emission(session, PacketType.SIGNAL, payload, cause, now, contract, parent=document.start_packet_id)


def timer(session: Session, kind: str, now: datetime, contract: Contract) -> Packet:
    """Return the SIGNAL QUERY to the orchestrator itself for a deadline that has passed; it causes what follows."""
    payload = SignalPayload(signal=Signal.QUERY, reason=f"deadline {kind}")
    packet_id = timer_id(session.session_id, session.step, kind)
    start = session.document.start_packet_id
    return emission(
        session,
        PacketType.SIGNAL,
        payload,
        start,
        now,
        contract,
        packet_id=packet_id,
        parent=start,
        recipient=ORCHESTRATOR,
    )


def subjects(document: SessionDocument) -> tuple[UUID, ...]:
    """Return the packets that the state is about: arbitrated EVALs, winner first, or the ARTIFACT to validate."""
    if isinstance(document, TaskDocument):
        done = document.work.done
        return () if done is None else (done,)
    current = document.round_state
    if document.state == "ARBITRATION":
        return tuple(candidate.packet_id for candidate in ranked_candidates(document))
    if document.state == "EXECUTION" and current.winner is not None:
        return (current.winner.packet_id,)
    if current.execution.artifact is not None:
        return (current.execution.artifact,)
    return ()


def ranked_candidates(document: SessionDocument) -> list[VerifiedCandidate]:
    """Return the best eligible candidate of each swarm, best first; ties go to the smaller candidate_id."""
    best = []
    for kept in document.candidates.values():
        eligible = [candidate for candidate in kept if candidate.packet_id not in document.excluded]
        if eligible:
            best.append(min(eligible, key=_rank))
    return sorted(best, key=_rank)[:MOST_CANDIDATES]


def _rank(candidate: VerifiedCandidate) -> tuple[float, str, int, int, str]:
    return candidate.rank


def _trace(document: SessionDocument, parent: UUID | None, root: UUID) -> Trace:
    return Trace(
        session_id=document.session_id,
        run_id=document.run_id,
        task_id=document.task_id,
        root_packet_id=root,
        parent_packet_id=parent or document.start_packet_id,
        generation=document.generation,
        step=document.step,
    )

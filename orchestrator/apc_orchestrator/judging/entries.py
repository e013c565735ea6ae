"""Turn verdicts, hops and transitions into the entries of a log batch."""

import orjson

from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Verdict
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.session.movement import Hop, Transition
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_log.batch import (
    ConflictEntry,
    CoordinationEntry,
    Entry,
    HopEntry,
    LineageEntry,
    PacketEntry,
    RegistryEntry,
    SessionUpdate,
)

_FIELDS, _FIELDS_OF_A_PACKET, _ID_BYTES = 250, 700, 66
"""Bytes of the bounded parts: ids, hashes and times of an entry, and an id in a list."""


def packet_entry(
    received: ReceivedPacket,
    verdict: Verdict,
    recipients: tuple[str, ...],
    session: Session | None,
    contract_hash: bytes,
    facts: Facts,
    signature: str | None,
) -> PacketEntry:
    """Return the row of a packet in agent_packets."""
    packet = received.packet
    trace, sender, refusal = packet.trace, packet.sender, verdict.refusal
    identity = session.identity(packet.packet_id) if session is not None else None
    return PacketEntry(
        packet_id=packet.packet_id,
        packet_type=str(packet.packet_type),
        channel=str(packet.channel),
        run_phase=str(packet.run_phase),
        session_id=trace.session_id,
        run_id=trace.run_id,
        task_id=trace.task_id,
        root_packet_id=trace.root_packet_id,
        parent_packet_id=trace.parent_packet_id,
        cause_packet_id=facts.proven_cause,
        sender_agent_id=sender.agent_id,
        sender_role=sender.role,
        sender_swarm_id=sender.swarm_id,
        recipients=list(recipients),
        generation=trace.generation,
        round=identity.round if identity is not None else 0,
        step=identity.step if identity is not None else 0,
        confidence=packet.confidence,
        created_at=packet.created_at,
        expires_at=packet.expires,
        verdict=str(verdict.kind),
        refusal=None if refusal is None else orjson.dumps(refusal.document),
        contract_hash=contract_hash,
        facts=orjson.dumps(verdict.facts),
        body=received.body,
        packet_hash=received.packet_hash,
        payload_hash=received.payload_hash,
        user_id=facts.user_id or "",
        signature=signature,
    )


def lineage_entry(packet: Packet) -> LineageEntry | None:
    """Return the row of packet_lineage of a packet that carries a lineage."""
    lineage = packet.lineage
    if lineage is None:
        return None
    payload = packet.payload_as(TransferPayload) if packet.packet_type is PacketType.TRANSFER else None
    mode = lineage.transfer_mode or (payload.transfer_policy.mode if payload else None)
    return LineageEntry(
        session_id=packet.trace.session_id,
        packet_id=packet.packet_id,
        protocol_id=lineage.protocol_id,
        parent_protocol_ids=list(lineage.parent_protocol_ids),
        ancestor_swarms=list(lineage.ancestor_swarms),
        cross_use_case=lineage.cross_use_case,
        transfer_mode=mode.value if mode else "",
        from_swarm=payload.from_swarm if payload else None,
        to_swarm=payload.to_swarm if payload else None,
        sender_score=payload.sender_score if payload else None,
        receiver_score=payload.receiver_score if payload else None,
    )


def hop_entry(session_id: str, hop: Hop) -> HopEntry:
    """Return the row of packet_events of a hop."""
    return HopEntry(
        session_id,
        hop.packet_id,
        hop.recipient,
        hop.attempt,
        hop.from_state,
        hop.to_state,
        hop.events,
        hop.occurred_at,
        hop.actor,
        None if hop.metadata is None else orjson.dumps(hop.metadata),
    )


def coordination_entry(session_id: str, row: Transition) -> CoordinationEntry:
    """Return the row of coordination_events of a transition or barrier."""
    return CoordinationEntry(
        session_id,
        row.round,
        row.generation,
        row.step,
        row.cause,
        row.event,
        row.from_state,
        row.to_state,
        orjson.dumps(row.facts),
    )


def session_row(session: Session) -> SessionUpdate:
    """Return the projection of a session after the batch."""
    document = session.document
    encoded = document.encode()
    session.document_bytes = len(encoded)
    return SessionUpdate(
        document.session_id,
        document.run_id,
        document.state,
        session.is_terminal,
        document.round,
        document.generation,
        document.step,
        session.open_deliveries,
        encoded,
    )


def size_of(entry: Entry) -> int:
    """Return about how many bytes an entry has in the log batch."""
    if isinstance(entry, PacketEntry):
        return _FIELDS_OF_A_PACKET + len(entry.body) + len(entry.facts) + _ID_BYTES * len(entry.recipients)
    if isinstance(entry, ConflictEntry):
        return _FIELDS + len(entry.reason) + len(entry.raw)
    if isinstance(entry, HopEntry):
        return _FIELDS + len(entry.metadata or b"")
    if isinstance(entry, CoordinationEntry):
        return _FIELDS + len(entry.facts)
    if isinstance(entry, RegistryEntry):
        return _FIELDS + len(entry.change)
    return _FIELDS + _ID_BYTES * (len(entry.parent_protocol_ids) + len(entry.ancestor_swarms))

"""A micro-batch while it is judged: the content of its one log batch, and everything that follows from it."""

from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
import orjson

from apc_bus.port import Publication
from apc_bus.telemetry import NO_TRACE, TraceHeaders
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Verdict
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import TransferPayload
from apc_contracts.session.movement import Hop, Transition, Verification
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.refused_input import Flood
from apc_log.batch import (
    LOG_BATCH_VERSION,
    ConflictEntry,
    CoordinationEntry,
    Entry,
    HopEntry,
    LineageEntry,
    LogBatch,
    OpeningBatch,
    PacketEntry,
    RegistryEntry,
    SessionUpdate,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# Turn verdicts, hops and transitions into the entries of a log batch.

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


FULL_BYTES = 1_310_720
"""1.25 MiB: 1 MiB of packets and their events. One more input may exceed it."""


class Outgoing(msgspec.Struct, frozen=True):
    """A delivery and its packet, so that a failure of the broker can be reported to the session."""

    publication: Publication
    session_id: str
    packet_id: UUID | None
    recipient: str
    attempt: int

    def repeated(self) -> "Outgoing":
        """Return it as a delivery that a former lease may have sent."""
        return msgspec.structs.replace(self, publication=msgspec.structs.replace(self.publication, is_repeated=True))


@dataclass(slots=True)
class Batch:
    """A batch judged at one time, `now`; `number` is its batch_no within the epoch."""

    number: int
    now: datetime
    entries: list[Entry] = field(default_factory=list)
    touched: dict[str, Session] = field(default_factory=dict)
    outgoing: list[Outgoing] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    contracts: set[bytes] = field(default_factory=set)
    """Contract files of sessions that this batch opens: the log keeps each one once."""
    trace: TraceHeaders = field(default_factory=lambda: NO_TRACE)
    """The trace of the input that is being judged."""
    spans: "list[Span]" = field(default_factory=list)
    """One span per packet, while tracing is on."""
    admit_seconds: list[float] = field(default_factory=list)
    """Seconds spent judging, one value per packet."""
    floods: dict[str, Flood] = field(default_factory=dict)
    """Broker user -> its refused input beyond its quota."""
    repeats: int = 0
    """Packets that were judged before."""
    nacks: int = 0
    """Refusals that are answered with a NACK."""
    _size: int = 0
    """Approximate bytes of the entries measured so far."""
    _sized_entries: int = 0
    _sized_sessions: int = 0

    def is_full(self) -> bool:
        """Return whether the message has reached the size limit: later inputs belong to another batch."""
        # Asked before each input: nothing is looked at again.
        self._size += sum(map(size_of, self.entries[self._sized_entries :]))
        self._sized_entries = len(self.entries)
        if len(self.touched) > self._sized_sessions:
            added = islice(self.touched.values(), self._sized_sessions, None)
            self._size += sum(one.document_bytes for one in added)
            self._sized_sessions = len(self.touched)
        return self._size + sum(map(len, self.contracts)) >= FULL_BYTES

    def flood_of(self, user: str) -> Flood:
        """Return the counter of a broker user's refused input beyond its quota."""
        return self.floods.setdefault(user, Flood())

    def seal(self, shard: int, epoch: int) -> LogBatch:
        """Return the message: entries in the order in which they happened, then the sessions as they are now."""
        rows = [session_row(session) for session in self.touched.values()]
        if self.contracts:
            held = sorted(self.contracts)
            return OpeningBatch(LOG_BATCH_VERSION, shard, epoch, self.number, self.now, self.entries, rows, held)
        return LogBatch(LOG_BATCH_VERSION, shard, epoch, self.number, self.now, self.entries, rows)

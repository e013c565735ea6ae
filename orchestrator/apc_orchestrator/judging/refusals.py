"""What becomes of a refusal: the NACK to the authenticated sender, and what the log keeps of input that takes no id.

A NACK has no log entry: the refused row covers it. Source: docs/specification/contract.md section 12.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from apc_contracts.contract.contract import Contract
from apc_contracts.contract.file import RefusedInput
from apc_contracts.identity.ids import ACCEPTANCE_ORDINAL, NACK_ORDINAL, reply_id
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.verdict import Refusal
from apc_contracts.packet import AckPacket, Actor, NackPacket, Packet, Recipient, Routing, Trace
from apc_contracts.payloads.by_type import AckPayload, NackPayload
from apc_contracts.session.movement import Denial
from apc_contracts.vocabulary import (
    ORCHESTRATOR,
    PROTOCOL_VERSION,
    AckStatus,
    Channel,
    DeliveryMode,
    PacketType,
    RunPhase,
)
from apc_contracts.wire.parsing import ReceivedPacket, seal
from apc_contracts.wire.refused_input import Flood, RefusedQuotas, kept_of
from apc_log.batch import ConflictEntry
from apc_orchestrator import publications
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.memory import ShardMemory

UNKNOWN = "_unknown"
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
        packet_type=PacketType.NACK,
        **_answer_fields(packet_id, refused_id, refused, sender, now, contract),
        payload=NackPayload(
            acked_packet_id=refused_id,
            ack_status=AckStatus.DEFERRED if is_deferred else AckStatus.REJECTED,
            reason=refusal.reason,
        ),
        metadata={"refusal": refusal.document},
    )


def ack_packet(accepted: Packet, sender: Registration, now: datetime, contract: Contract) -> AckPacket:
    """Return what tells a sender that its packet was accepted. As a NACK it has no log entry: the packet's row says it.

    It is not the ACK that the orchestrator sends as a recipient.
    """
    accepted_id = accepted.packet_id
    packet_id = reply_id(accepted_id, ORCHESTRATOR, ACCEPTANCE_ORDINAL)
    return AckPacket(
        packet_type=PacketType.ACK,
        **_answer_fields(packet_id, accepted_id, accepted, sender, now, contract),
        payload=AckPayload(acked_packet_id=accepted_id, ack_status=AckStatus.ACCEPTED),
    )


def _answer_fields(
    packet_id: UUID,
    answered_id: UUID,
    answered: Packet | None,
    sender: Registration,
    now: datetime,
    contract: Contract,
) -> dict[str, Any]:
    return {
        "protocol_version": PROTOCOL_VERSION,
        "packet_id": packet_id,
        "channel": Channel.INTER_AGENT,
        "run_phase": RunPhase.RESEARCH if answered is None else answered.run_phase,
        "created_at": now,
        "sender": Actor(agent_id=ORCHESTRATOR, role=ORCHESTRATOR, swarm_id=ORCHESTRATOR),
        "recipients": (Recipient(agent_id=sender.agent_id),),
        "trace": _trace(packet_id, answered_id, answered),
        "routing": Routing(
            delivery_mode=DeliveryMode.DIRECT,
            priority=PRIORITY,
            ttl_ms=contract.session.emission_ttl_ms,
            requires_ack=False,
        ),
        "confidence": 1.0,
        "symbolic_keys": (),
    }


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


class Answers:
    """Puts answers into a batch; none for a sender that the broker does not know, was revoked, or has no inbox."""

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._registry = memory.registry

    def refusal(self, batch: Batch, received: ReceivedPacket, refusal: Refusal, user_id: str | None) -> None:
        """Send the NACK to the sender that the broker authenticated."""
        sender = self._registry.users_agent(user_id, received.packet.sender.agent_id)
        self._answer_packet(batch, received.packet, refusal, sender)

    def acceptance(self, batch: Batch, received: ReceivedPacket, user_id: str | None) -> None:
        """Tell the sender that the broker authenticated, and that has asked, that its packet is accepted."""
        packet = received.packet
        sender = self._registry.users_agent(user_id, packet.sender.agent_id)
        if sender is None or sender.agent_id != packet.sender.agent_id or not _can_hear(sender):
            return
        self._send(
            batch, packet.packet_id, packet, ack_packet(packet, sender, batch.now, self._memory.contract), sender
        )

    def denial(self, batch: Batch, denial: Denial) -> None:
        """Send the NACK to the sender of a packet that was held and then refused."""
        packet = denial.received.packet
        self._answer_packet(batch, packet, denial.refusal, self._registry.by_id.get(packet.sender.agent_id))

    def unreadable(self, batch: Batch, message_id: UUID, refusal: Refusal, user_id: str | None) -> None:
        """Send the NACK to the only agent with that broker user: the body does not name a sender."""
        sender = self._registry.users_agent(user_id, None)
        if sender is not None:
            self._answer(batch, message_id, None, refusal, sender)

    def _answer_packet(self, batch: Batch, packet: Packet, refusal: Refusal, sender: Registration | None) -> None:
        if sender is None or sender.agent_id == ORCHESTRATOR:
            return
        if packet.packet_type not in self._memory.contract.refusals.never_answered:
            self._answer(batch, packet.packet_id, packet, refusal, sender)

    def _answer(
        self, batch: Batch, refused_id: UUID, refused: Packet | None, refusal: Refusal, sender: Registration
    ) -> None:
        if not _can_hear(sender):
            return
        answer = nack_packet(refused_id, refused, refusal, sender, batch.now, self._memory.contract)
        self._send(batch, refused_id, refused, answer, sender)
        batch.nacks += 1

    def _send(
        self, batch: Batch, answered_id: UUID, answered: Packet | None, answer: Packet, sender: Registration
    ) -> None:
        session = self._memory.sessions.get(answered.trace.session_id) if answered is not None else None
        trace = self._memory.traces.of(batch, answered_id)
        publication = publications.answer(seal(answer), sender, self._memory.lease, session, trace)
        batch.outgoing.append(Outgoing(publication, "", None, sender.agent_id, 1))


def _can_hear(sender: Registration) -> bool:
    return not sender.is_revoked and sender.has_inbox


FLOOD = "flood"
"""The kind of the entry that summarises refused input beyond its sender's quota."""
_LONGEST_NAME = 255
NOBODY = ""
"""The broker user of messages without one: they share a quota."""


class Quarantine:
    """Records conflicts and counts the refused input of each broker user."""

    def __init__(self, rules: RefusedInput) -> None:
        self._rules = rules
        self._quotas = RefusedQuotas(rules)

    def has_room(self, batch: Batch, raw: bytes, user_id: str | None) -> bool:
        """Return whether the sender's quota for refused input has room for this body.

        Draw it, or count it as a flood.
        """
        user = user_id or NOBODY
        size = len(raw) if len(raw) <= self._rules.whole_bytes else self._rules.head_bytes
        if self._quotas.draw(user, size, batch.now):
            return True
        batch.flood_of(user).add(raw)
        return False

    def record(
        self,
        batch: Batch,
        kind: str,
        reason: str,
        raw: bytes,
        *,
        user_id: str | None,
        code: str | None = None,
        session_id: str | None = None,
        packet_id: UUID | None = None,
        first_hash: bytes | None = None,
        second_hash: bytes | None = None,
        is_always_kept: bool = False,
    ) -> bool:
        """Record a conflict with its bytes; False when it only counts as part of a flood."""
        if not is_always_kept and not self.has_room(batch, raw, user_id):
            return False
        kept = kept_of(raw, self._rules)
        hash_of_all = second_hash or kept.second_hash
        batch.entries.append(
            ConflictEntry(
                session_id, packet_id, kind, code, reason + kept.note, kept.raw, first_hash, hash_of_all, user_id
            )
        )
        return True


def dead_input_refusal(queue: str, reason: str) -> Refusal:
    """Return why an input that was dead-lettered in a queue was not judged."""
    # Forged headers may hold a NUL, which no row of the log can.
    queue, reason = (text[:_LONGEST_NAME].replace("\0", "\\0") for text in (queue, reason))
    message = (
        f"the message died in queue {queue} ({reason}) before it was judged: "
        "send it without AMQP expiration, the packet says itself when it expires"
    )
    return Refusal("EXPIRED", "arrives_alive", "$", message)


def flood_entry(user: str, flood: Flood) -> ConflictEntry:
    """Return the row of packet_conflicts that stands for what a broker user has sent beyond its quota in one batch."""
    return ConflictEntry(
        None, None, FLOOD, "QUOTA_EXCEEDED", flood.reason, b"", None, flood.digest, None if user == NOBODY else user
    )

"""Packets that were judged before, and ids that are taken: never judged twice."""

from datetime import timedelta

from apc_contracts.envelope.packet import Packet
from apc_contracts.judging.facts import Facts
from apc_contracts.judging.verdict import Refusal
from apc_contracts.session import Identity, Session
from apc_contracts.session.delivery.repeats import deliveries_to_repeat
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import ReceivedPacket
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.judge_memory import ShardMemory
from apc_orchestrator.judging.quarantine import Quarantine
from apc_orchestrator.judging.refusal_answers import Answers
from apc_orchestrator.judging.routing import DeliveryRouting


class Repeats:
    """Repeats the effects of a packet's first copy that may be missing, as far as its sender's quota allows."""

    def __init__(self, memory: ShardMemory, quarantine: Quarantine, answers: Answers, routing: DeliveryRouting) -> None:
        self._memory = memory
        self._quarantine = quarantine
        self._answers = answers
        self._routing = routing
        self._interval = timedelta(milliseconds=memory.contract.limits.retry_after_ms)

    def repeat(self, batch: Batch, received: ReceivedPacket, session: Session | None, facts: Facts) -> None:
        """Answer a repeated packet of a known session: with its refusal, or with its open deliveries."""
        packet = received.packet
        if not self._draw(batch, packet):
            return
        identity = session.identity(packet.packet_id) if session is not None else None
        if session is None or identity is None:
            return
        if identity.refusal is not None:
            self._answers.refusal(batch, received, identity.refusal, facts.user_id)
        opened = session.open.get(packet.packet_id)
        if opened is None or packet.expires <= batch.now:
            return
        for recipient, progress in deliveries_to_repeat(opened, batch.now, self._interval):
            self._routing.redeliver(batch, session, opened, recipient, progress)

    def repeat_unknown(self, batch: Batch, received: ReceivedPacket, known: Identity, facts: Facts) -> None:
        """Answer a packet that was refused before its session began: with its recorded refusal, or as a conflict."""
        if not self._draw(batch, received.packet):
            return
        refusal = known.refusal
        if refusal is None or known.packet_hash != received.packet_hash:
            message = "another packet has this packet_id in the session and stands: send a new packet with a new id"
            refusal = Refusal("DUPLICATE_CONFLICT", "identity_is_free", "packet_id", message)
            if not self.record_conflict(batch, received, facts, "refused", refusal.code, refusal.reason):
                return
        self._answers.refusal(batch, received, refusal, facts.user_id)

    def record_conflict(
        self, batch: Batch, received: ReceivedPacket, facts: Facts, kind: str, code: str | None, reason: str
    ) -> bool:
        """Record a packet whose id is taken; False when it only counts as part of a flood."""
        packet = received.packet
        session = self._memory.sessions.get(packet.trace.session_id)
        identity = session.identity(packet.packet_id) if session is not None else None
        return self._quarantine.record(
            batch,
            kind,
            reason,
            received.body,
            code=code,
            session_id=packet.trace.session_id,
            packet_id=packet.packet_id,
            first_hash=identity.packet_hash if identity is not None else None,
            second_hash=received.packet_hash,
            user_id=facts.user_id,
        )

    def _draw(self, batch: Batch, packet: Packet) -> bool:
        """Draw a repeat from its sender's quota; False when the quota is used up."""
        batch.repeats += 1
        sender, quotas = packet.sender, self._memory.quotas
        if sender.agent_id == ORCHESTRATOR:
            return True
        if quotas.wait_ms(sender.agent_id, sender.role, batch.now) > 0:
            return False
        quotas.draw(sender.agent_id, sender.role, batch.now)
        return True

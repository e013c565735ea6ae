"""Answer refusals: the authenticated sender gets a NACK (docs/specification/contract.md section 12)."""

from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.identity.registry import Registration
from apc_contracts.judging.verdict import Refusal
from apc_contracts.session import Denial
from apc_contracts.vocabulary import ORCHESTRATOR
from apc_contracts.wire.parsing import ReceivedPacket
from apc_contracts.wire.sealing import seal
from apc_orchestrator import publications
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.judge_memory import ShardMemory
from apc_orchestrator.judging.nack import nack_packet


class Answers:
    """Puts NACKs into a batch; none for a sender that the broker does not know, was revoked, or has no inbox."""

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory
        self._registry = memory.registry

    def refusal(self, batch: Batch, received: ReceivedPacket, refusal: Refusal, user_id: str | None) -> None:
        """Send the NACK to the sender that the broker authenticated."""
        sender = self._registry.users_agent(user_id, received.packet.sender.agent_id)
        self._answer_packet(batch, received.packet, refusal, sender)

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
        if sender.is_revoked or not sender.has_inbox:
            return
        sealed = seal(nack_packet(refused_id, refused, refusal, sender, batch.now, self._memory.contract))
        session = self._memory.sessions.get(refused.trace.session_id) if refused is not None else None
        trace = self._memory.traces.of(batch, refused_id)
        publication = publications.nack(sealed, sender, self._memory.lease, session, trace)
        batch.outgoing.append(Outgoing(publication, "", None, sender.agent_id, 1))
        batch.nacks += 1

"""Deliveries of accepted packets: into the batch, or into a delay queue until a retry is due."""

from datetime import datetime

from apc_contracts.session import Effects, OpenPacket, Progress, Route, Session
from apc_orchestrator import publications
from apc_orchestrator.batch import Batch, Outgoing
from apc_orchestrator.judging.judge_memory import ShardMemory


class DeliveryRouting:
    """Puts deliveries into a batch and counts those that are open."""

    def __init__(self, memory: ShardMemory) -> None:
        self._memory = memory

    def count(self, effects: Effects) -> None:
        """Note which deliveries began and which ended."""
        outstanding = self._memory.outstanding
        for route in effects.routes:
            for recipient in route.recipients:
                outstanding.begin(route.received.packet.sender.agent_id, recipient)
        for sender, recipient in zip(effects.ended_senders, effects.ended, strict=True):
            outstanding.end(sender, recipient)

    def count_open(self, session: Session) -> None:
        """Note every open delivery of a session that was loaded."""
        for opened in session.open.values():
            for recipient, progress in opened.recipients.items():
                if progress.is_open:
                    self._memory.outstanding.begin(opened.packet.sender.agent_id, recipient)

    def deliver(self, batch: Batch, session: Session, route: Route) -> None:
        """Deliver a packet to the recipients of a route, now or when its retry is due."""
        if route.not_before is not None and route.not_before > batch.now:
            self._postpone(batch, session, route, route.not_before)
            return
        packet, registry, lease = route.received.packet, self._memory.registry.by_id, self._memory.lease
        trace = self._memory.traces.of(batch, packet.packet_id)
        sender = registry.get(packet.sender.agent_id)
        message = publications.delivery(
            route.received, route.attempt, session, lease, batch.number, batch.now, trace=trace, sender=sender
        )
        for recipient in route.recipients:
            publication = publications.addressed(message, packet, recipient, registry)
            batch.outgoing.append(Outgoing(publication, session.session_id, packet.packet_id, recipient, route.attempt))

    def redeliver(self, batch: Batch, session: Session, opened: OpenPacket, recipient: str, progress: Progress) -> None:
        """Repeat an open delivery; a retry that is not due yet is postponed again."""
        self.deliver(batch, session, Route(opened.received, (recipient,), progress.attempt, progress.not_before))

    def redeliver_all(self, batch: Batch, session: Session) -> None:
        """Repeat every open delivery of a session."""
        for opened in session.open.values():
            for recipient, progress in opened.recipients.items():
                if progress.is_open:
                    self.redeliver(batch, session, opened, recipient, progress)

    def _postpone(self, batch: Batch, session: Session, route: Route, not_before: datetime) -> None:
        packet = route.received.packet
        for recipient in route.recipients:
            publication = publications.postponed(
                packet, recipient, route.attempt, not_before, self._memory.lease, batch.now
            )
            batch.outgoing.append(Outgoing(publication, session.session_id, packet.packet_id, recipient, route.attempt))

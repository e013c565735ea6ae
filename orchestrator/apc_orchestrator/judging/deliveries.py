"""What follows from a judged input: entries, deliveries and answers at once, further work in a queue."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from apc_contracts.packet import Packet
from apc_contracts.protocol.effectiveness import DecayDecision
from apc_contracts.session.advance import Advanced
from apc_contracts.session.movement import Effects, FinalVerdict, Route
from apc_contracts.session.session import HeldPacket, OpenPacket, Progress, Session
from apc_orchestrator import publications
from apc_orchestrator.batch import Batch, Outgoing, coordination_entry, hop_entry
from apc_orchestrator.judging.memory import ShardMemory
from apc_orchestrator.judging.refusals import Answers


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


@dataclass(frozen=True, slots=True)
class OwnPacket:
    """Judge a packet of the orchestrator."""

    packet: Packet


@dataclass(frozen=True, slots=True)
class Release:
    """Judge a packet that a pause held, now that `cause` has ended the pause."""

    session: Session
    held: HeldPacket
    cause: UUID
    is_last: bool


@dataclass(frozen=True, slots=True)
class ProtocolVerdict:
    """Count a final verdict in the ledger of its protocol."""

    session: Session
    final: FinalVerdict


@dataclass(frozen=True, slots=True)
class DecayNotice:
    """Log a block or a recovery of a protocol in the session that caused it."""

    session: Session
    decision: DecayDecision
    cause: Packet


Work = OwnPacket | Release | ProtocolVerdict | DecayNotice


class WorkQueue:
    """Depth first: what an item causes is done before the item's siblings. Replay depends on this order."""

    def __init__(self) -> None:
        self._stack: list[Work] = []

    def add(self, items: Iterable[Work]) -> None:
        """Put `items` in front of what already waits, in their order."""
        self._stack += reversed(list(items))

    def next(self) -> Work | None:
        """Remove and return the next item; None when the queue is empty."""
        return self._stack.pop() if self._stack else None


class Following:
    """Logs and sends what follows from an input, and queues what has to be judged because of it."""

    def __init__(self, answers: Answers, routing: DeliveryRouting) -> None:
        self.queue = WorkQueue()
        self._answers = answers
        self._routing = routing

    def apply(self, batch: Batch, session: Session, advanced: Advanced, cause: UUID) -> None:
        """Log and send what follows from an input; queue what has to be judged because of it."""
        effects, session_id = advanced.effects, session.session_id
        batch.touched[session_id] = session
        batch.entries += [hop_entry(session_id, hop) for hop in effects.hops]
        batch.entries += [coordination_entry(session_id, row) for row in effects.transitions]
        batch.verifications.extend(effects.verifications)
        self._routing.count(effects)
        for route in (*effects.routes, *effects.due):
            self._routing.deliver(batch, session, route)
        for denial in effects.denials:
            self._answers.denial(batch, denial)
        following: list[Work] = [OwnPacket(packet) for packet in advanced.emissions]
        for held in effects.resumed:
            following.append(Release(session, held, cause, is_last=held is effects.resumed[-1]))
        following += [ProtocolVerdict(session, final) for final in effects.final_verdicts]
        if following:
            self.queue.add(following)

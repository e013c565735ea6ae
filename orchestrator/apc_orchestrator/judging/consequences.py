"""What follows from a judged input: entries, deliveries and answers at once, further work in a queue."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.protocol.decay import DecayDecision
from apc_contracts.session import Advanced, FinalVerdict, HeldPacket, Session
from apc_orchestrator.batch import Batch
from apc_orchestrator.judging.entries import coordination_entry, hop_entry
from apc_orchestrator.judging.refusal_answers import Answers
from apc_orchestrator.judging.routing import DeliveryRouting


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

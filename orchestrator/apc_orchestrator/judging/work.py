"""Items of the judge's work queue: what a judged packet leaves to do next."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from apc_contracts.envelope.packet import Packet
from apc_contracts.protocol.decay import DecayDecision
from apc_contracts.session import FinalVerdict, HeldPacket, Session


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

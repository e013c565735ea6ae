"""A micro-batch while it is judged: the content of its one log batch, and everything that follows from it."""

from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from uuid import UUID

import msgspec
from opentelemetry.trace import Span

from apc_bus.port import Publication
from apc_bus.tracing import NO_TRACE, TraceHeaders
from apc_contracts.session.movement import Verification
from apc_contracts.session.session import Session
from apc_contracts.wire.refused_input import Flood
from apc_log.batch import LOG_BATCH_VERSION, Entry, LogBatch, OpeningBatch
from apc_orchestrator.judging.entries import session_row, size_of

FULL_BYTES = 1_310_720
"""1.25 MiB: 1 MiB of packets and their events. One more input may exceed it."""


class Outgoing(msgspec.Struct, frozen=True):
    """A delivery and its packet, so that a failure of the broker can be reported to the session."""

    publication: Publication
    session_id: str
    packet_id: UUID | None
    recipient: str
    attempt: int


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
    spans: list[Span] = field(default_factory=list)
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
        self._size += sum(size_of(entry) for entry in islice(self.entries, self._sized_entries, None))
        self._size += sum(one.document_bytes for one in islice(self.touched.values(), self._sized_sessions, None))
        self._sized_entries, self._sized_sessions = len(self.entries), len(self.touched)
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

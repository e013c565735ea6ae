"""What a lease keeps in memory: its sessions, loaded once and evicted when committed, and the rules."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from apc_contracts.contract.collection import Contracts
from apc_contracts.contract.contract import Contract
from apc_contracts.judging.quotas import Outstanding, Quotas
from apc_contracts.judging.session_view import Identity
from apc_contracts.packet import Packet
from apc_contracts.protocol.ledger import ProtocolLedger
from apc_contracts.session.opening import contract_named
from apc_contracts.session.session import Session
from apc_contracts.vocabulary import PRESENCE_SESSION
from apc_log.queries.agents import ALIVE_WITHIN
from apc_log.session_loading import REFUSED_KEPT
from apc_orchestrator.judging.registry import Registry
from apc_orchestrator.lease import Lease
from apc_orchestrator.telemetry import Traces

UNKNOWN_SESSIONS_KEPT = 10_000
"""Limit of names of sessions that do not exist."""
UNKNOWN_SESSION_BYTES = 64 << 20
"""Limit of their memory in bytes, estimated; names not heard for longest are forgotten first."""
PRESENCE_KEPT, PRESENCE_OF_AN_AGENT = 10_000, 4
"""Limit of packets of the presence session, and how many of them a registered agent may have repeated at a takeover."""
PRESENCE_BYTES = 16 << 20
"""Limit of the memory of the presence session's packets in bytes, estimated; the oldest are forgotten first."""
ITEMS_KEPT = 500_000
"""Packets, recipients and references that all loaded sessions may remember, about 600 bytes each."""
BODY_BYTES_KEPT = 128 << 20
"""Bytes of unfinished packets' bodies, over all loaded sessions."""
_NAME_BYTES, _IDENTITY_BYTES, _TEXT_BYTES = 600, 1200, 60
"""Measured bytes: a name with its dictionary, an identity with its ids and hashes, a text beside its characters."""


class PresencePackets:
    """The newest packets of the presence session, which has no Session: a repeat is known by its id, as in any other.

    A HEARTBEAT comes again when its sender lost the confirm, until it expires (60 s by default), or when a gate died
    before it had acknowledged it (at most `gate_prefetch` inputs). An agent waits for the confirm before the next one
    and sends at most one in 30 s, so that others send two each meanwhile: PRESENCE_KEPT are enough for 3,000 agents.
    Beyond that the log writer still keeps each id once, and records a conflict. One that is not logged takes its id in
    this memory alone: after a takeover its repeat is one more sign of life.
    """

    def __init__(self) -> None:
        self._known: dict[UUID, Identity] = {}
        self._size = 0

    @property
    def size_bytes(self) -> int:
        """About how many bytes they take."""
        return self._size

    def get(self, packet_id: UUID) -> Identity | None:
        """Return one that took an id, if it is remembered."""
        return self._known.get(packet_id)

    @staticmethod
    def most_at_takeover(prefetch: int, agents: int) -> int:
        """Return how many of the last lease's a new one has to know, with this many agents in the registry."""
        return min(PRESENCE_KEPT, prefetch + PRESENCE_OF_AN_AGENT * agents)

    def remember(self, packet_id: UUID, identity: Identity) -> None:
        """Remember one that took an id, as the newest."""
        assert packet_id not in self._known, "a packet takes its id once"
        self._known[packet_id] = identity
        self._size += _bytes_of(identity)
        while len(self._known) > PRESENCE_KEPT or self._size > PRESENCE_BYTES:
            self._size -= _bytes_of(self._known.pop(next(iter(self._known))))


class Sessions:
    """session_id -> Session, and which ids are known to have none."""

    def __init__(self) -> None:
        self.presence = PresencePackets()
        self._loaded: OrderedDict[str, Session] = OrderedDict()
        self._unknown: OrderedDict[str, dict[UUID, Identity]] = OrderedDict()
        self._unknown_session_bytes = 0
        self._last_batch: dict[str, int] = {}
        self._foreign: set[str] = set()
        """Sessions of other shards, among the unknown ones: the number of shards was another when they were opened."""
        self._evicted: set[str] = set()
        """Sessions evicted with deliveries in flight, which still count: the inboxes are as full as before."""
        self._ended: dict[str, int] = {}
        """Ended sessions at the last eviction -> their last batch then."""

    def get(self, session_id: str) -> Session | None:
        """Return the session, if it exists and is in memory."""
        return self._loaded.get(session_id)

    def is_known(self, session_id: str) -> bool:
        """Return whether the database need not be asked: the session is here, or there is none."""
        return session_id in self._loaded or session_id in self._unknown or session_id == PRESENCE_SESSION

    def add(self, session: Session) -> None:
        """Add a session that was opened or loaded."""
        self._forget_unknown_session(session.session_id)
        self._evicted.discard(session.session_id)
        self._loaded[session.session_id] = session

    def was_evicted(self, session_id: str) -> bool:
        """Return whether the session was evicted with deliveries in flight."""
        return session_id in self._evicted

    def note_absence(self, session_id: str, refused: Mapping[UUID, Identity]) -> None:
        """Note that a session does not exist; `refused` are packets refused earlier under its name."""
        self._forget_unknown_session(session_id)
        self._unknown[session_id] = dict(refused)
        self._unknown_session_bytes += _NAME_BYTES + sum(map(_bytes_of, refused.values()))
        self._bound_unknown_sessions()

    def note_foreign(self, session_id: str) -> None:
        """Note that a session is in another shard of the log: nothing of it may be written in this one."""
        self.note_absence(session_id, {})
        self._foreign.add(session_id)

    def is_foreign(self, session_id: str) -> bool:
        """Return whether the session is known to be in another shard of the log."""
        return session_id in self._foreign

    def refused_packets(self, session_id: str) -> Mapping[UUID, Identity]:
        """Return the packets refused under the name of a session that does not exist."""
        return self._unknown.get(session_id, {})

    def packet_without_session(self, session_id: str, packet_id: UUID) -> Identity | None:
        """Return one packet of the presence session, or refused under the name of a session that does not exist."""
        if session_id == PRESENCE_SESSION:
            return self.presence.get(packet_id)
        return self.refused_packets(session_id).get(packet_id)

    def remember_without_session(self, session_id: str, packet_id: UUID, identity: Identity) -> None:
        """Remember a packet of the presence session, or one refused under such a name.

        Beyond the limit the oldest is forgotten: the log still has its id.
        """
        if session_id == PRESENCE_SESSION:
            self.presence.remember(packet_id, identity)
            return
        if session_id not in self._unknown:
            self.note_absence(session_id, {})
        self._unknown.move_to_end(session_id)
        known = self._unknown[session_id]
        before = known.pop(packet_id, None)
        self._unknown_session_bytes -= _bytes_of(before) if before is not None else 0
        known[packet_id] = identity
        self._unknown_session_bytes += _bytes_of(identity)
        if len(known) > REFUSED_KEPT:
            self._unknown_session_bytes -= _bytes_of(known.pop(next(iter(known))))
        self._bound_unknown_sessions()

    @property
    def unknown_session_bytes(self) -> int:
        """About how many bytes the names of nonexistent sessions take, with the packets refused under them."""
        return self._unknown_session_bytes

    def _bound_unknown_sessions(self) -> None:
        while len(self._unknown) > UNKNOWN_SESSIONS_KEPT or self._unknown_session_bytes > UNKNOWN_SESSION_BYTES:
            name, known = next(iter(self._unknown.items()))
            if len(self._unknown) > 1 or not known:
                self._forget_unknown_session(name)
            else:  # keep the name that is heard now: the log need not be asked for each of its packets
                self._unknown_session_bytes -= _bytes_of(known.pop(next(iter(known))))

    def _forget_unknown_session(self, session_id: str) -> None:
        known = self._unknown.pop(session_id, None)
        self._foreign.discard(session_id)
        if known is not None:
            self._unknown_session_bytes -= _NAME_BYTES + sum(map(_bytes_of, known.values()))

    def touch(self, session_ids: Iterable[str], batch_no: int) -> None:
        """Note that this batch changed these sessions: they stay until it is committed."""
        for session_id in session_ids:
            self._last_batch[session_id] = batch_no
            self._loaded.move_to_end(session_id)

    def evict(self, committed: int, most: int) -> list[str]:
        """Evict the longest untouched sessions beyond the bounds, and those that ended.

        A session stays until its last batch is committed. One that ended with open deliveries stays until nothing
        arrives for it between two calls.
        """
        gone = []
        surplus, items, size = (
            len(self._loaded) - most,
            self._items() - ITEMS_KEPT,
            self._body_bytes() - BODY_BYTES_KEPT,
        )
        for session_id, session in list(self._loaded.items()):
            last_batch = self._last_batch.get(session_id, 0)
            is_quiet = not session.open or self._ended.get(session_id) == last_batch
            is_over = session.is_terminal and is_quiet
            if not is_over and max(surplus, items, size) <= 0:
                continue
            if last_batch <= committed:
                del self._loaded[session_id]
                if session.outstanding:
                    self._evicted.add(session_id)
                self._last_batch.pop(session_id, None)
                gone.append(session_id)
                surplus, items = surplus - 1, items - _items_of(session)
                size -= session.open_bytes
        ended = (one.session_id for one in self._loaded.values() if one.is_terminal)
        self._ended = {session_id: self._last_batch.get(session_id, 0) for session_id in ended}
        return gone

    def has_surplus(self, most: int) -> bool:
        """Return whether `evict` may have something to do."""
        if len(self._loaded) > most or any(session.is_terminal for session in self._loaded.values()):
            return True
        return self._items() > ITEMS_KEPT or self._body_bytes() > BODY_BYTES_KEPT

    def _items(self) -> int:
        return sum(map(_items_of, self._loaded.values()))

    def _body_bytes(self) -> int:
        return sum(session.open_bytes for session in self._loaded.values())

    def loaded(self) -> list[Session]:
        """Return the sessions in memory, as a copy: others may be loaded or evicted during a walk."""
        return list(self._loaded.values())

    def __len__(self) -> int:
        return len(self._loaded)


def _items_of(session: Session) -> int:
    return session.items + session.refused_items


def _bytes_of(identity: Identity) -> int:
    """Return about how many bytes an identity takes: its sender chooses its recipients, and so the refusal's length."""
    texts = [*identity.recipients]
    if identity.refusal is not None:
        texts += [identity.refusal.message, identity.refusal.path]
    return _IDENTITY_BYTES + sum(_TEXT_BYTES + len(text) for text in texts)


REPORT_INTERVAL = timedelta(seconds=30)
"""Between two reports of signs of life; an agent that was silent is reported at once."""


class SignsOfLife:
    """agent_id -> when it last sent a packet or a receipt. Only registered agents are noted, so it has their bound.

    ```python
    signs = SignsOfLife()
    assert signs.is_silent("desk", now)
    signs.note("desk", now)
    assert not signs.is_silent("desk", now) and signs.take_due(now) == {"desk": now}
    ```
    """

    def __init__(self) -> None:
        self._last: dict[str, datetime] = {}
        self._unreported: set[str] = set()
        self._reported_at: datetime | None = None
        self._is_urgent = False

    def recall(self, last: Mapping[str, datetime]) -> None:
        """Take over what was reported before this lease."""
        self._last = {**last, **self._last}

    def is_silent(self, agent_id: str, now: datetime) -> bool:
        """Return whether an agent was not heard of lately."""
        before = self._last.get(agent_id)
        return before is None or now - before >= ALIVE_WITHIN

    def note(self, agent_id: str, now: datetime) -> None:
        """Note a sign of life."""
        self._is_urgent = self._is_urgent or self.is_silent(agent_id, now)
        self._last[agent_id] = now
        self._unreported.add(agent_id)

    def take_due(self, now: datetime) -> dict[str, datetime]:
        """Return what is to be reported now, once; empty = nothing yet."""
        is_due = self._reported_at is None or now - self._reported_at >= REPORT_INTERVAL
        if not self._unreported or not (is_due or self._is_urgent):
            return {}
        due = {agent_id: self._last[agent_id] for agent_id in self._unreported}
        self._unreported.clear()
        self._reported_at, self._is_urgent = now, False
        return due

    def give_back(self, agents: Collection[str]) -> None:
        """Have these reported again: their report did not get through."""
        self._unreported.update(agents)


@dataclass(frozen=True, slots=True)
class ShardMemory:
    """State shared by the parts of a judge. Each lease starts with a new one; all of it can be read from the log."""

    contracts: Contracts
    lease: Lease
    shards: int
    """Number of shards in the deployment."""
    operator: str
    """The broker user who may change the registry."""
    registry: Registry
    protocols: ProtocolLedger
    sessions: Sessions = field(default_factory=Sessions)
    traces: Traces = field(default_factory=Traces)
    outstanding: Outstanding = field(default_factory=Outstanding)
    """Open deliveries per sender and recipient, over all sessions of the shard."""
    signs: SignsOfLife = field(default_factory=SignsOfLife)
    logs_heartbeats: bool = False
    """Whether every HEARTBEAT is logged, and not only the first one after a silence."""
    quotas: Quotas = field(init=False)

    @property
    def contract(self) -> Contract:
        """The deployment's default: its limits and quotas hold for all sessions."""
        return self.contracts.default

    def contract_of(self, session: Session) -> Contract:
        """Return the contract of a session; the default when its own cannot be loaded."""
        return self.contracts.of_hash(session.document.contract_hash) or self.contracts.default

    def contract_for(self, packet: Packet) -> Contract:
        """Return the contract that judges a packet without session: the one that a START names, else the default."""
        name = contract_named(packet)
        return self.contract if name is None else self.contracts.named(name) or self.contract

    def __post_init__(self) -> None:
        object.__setattr__(self, "quotas", Quotas(self.contract.limits.quota))

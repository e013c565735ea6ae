"""What a worker knows from its deliveries: packets and headers, what was handled already, what a deposed orchestrator
never committed, and the phase of each session.

Source: docs/specification/architecture.md section 2, docs/specification/contract.md section 10.
"""

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import lru_cache
from operator import attrgetter
from threading import Lock
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from uuid import UUID

import msgspec
from pydantic import BaseModel

from apc_bus import headers
from apc_bus.concurrency import boottime
from apc_bus.port import Delivery, HeaderValue, Message
from apc_bus.telemetry import NO_TRACE, LogIds, TraceHeaders, get_logger
from apc_contracts.identity.ids import ACCEPTANCE_ORDINAL, NACK_ORDINAL, reply_id
from apc_contracts.packet import AckPacket, NackPacket, Packet
from apc_contracts.payloads.by_type import SignalFields, SignalPayload
from apc_contracts.payloads.session_signals import SessionState, TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, Right, RunPhase, Signal
from apc_contracts.wire.parsing import parse_checked_packet, parse_packet

if TYPE_CHECKING:
    from apc_bus.last_resort import Risk

_log = get_logger("apc_agents")

MAX_ENDED = 50_000
"""Ended deliveries remembered: many times the bound of outstanding deliveries of an agent."""
MAX_EPOCHS = 16
"""Epochs of a shard whose marks are remembered; a change of the orchestrator is rare."""

KeyT = TypeVar("KeyT", bound=Hashable)
DeliveryKey = tuple[UUID, int]
"""(packet_id, attempt): one handing over of a packet."""


class RecentKeys(Generic[KeyT]):
    """A bounded set that forgets its oldest members first."""

    def __init__(self, limit: int = MAX_ENDED) -> None:
        self._limit = limit
        self._keys: OrderedDict[KeyT, None] = OrderedDict()

    def add(self, key: KeyT) -> None:
        """Remember a key."""
        self._keys[key] = None
        if len(self._keys) > self._limit:
            self._keys.popitem(last=False)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._keys


class FencingTokens:
    """The marks of one shard: which deliveries of older epochs belong to a batch that was never committed.

    The mark of an epoch is the last (epoch, batch_no) committed before it. A delivery of an older epoch that lies
    beyond it was sent by an orchestrator that had already lost the shard.
    """

    def __init__(self) -> None:
        self._newest = -1
        self._fencing_tokens: dict[int, tuple[int, int]] = {}

    def is_fenced(self, epoch: int, batch_no: int, mark: tuple[int, int]) -> bool:
        """Return whether this delivery must be dropped; takes its own mark over first."""
        if epoch not in self._fencing_tokens:
            self._remember(epoch, mark)
        if epoch >= self._newest:
            return False
        place = (epoch, batch_no)
        return any(place > known for newer, known in self._fencing_tokens.items() if newer > epoch)

    def _remember(self, epoch: int, mark: tuple[int, int]) -> None:
        self._fencing_tokens[epoch] = mark
        self._newest = max(self._newest, epoch)
        if len(self._fencing_tokens) > MAX_EPOCHS:
            del self._fencing_tokens[min(self._fencing_tokens)]


# What time it is for the orchestrators: a wrong clock of this machine must not expire packets, nor keep them alive.

CLOCK_TOLERANCE = timedelta(seconds=5)
SET_CLOCK = (
    "synchronize this machine's clock with the orchestrators' (NTP, chrony); until then packets expire by theirs"
)


def utc_now() -> datetime:
    """Return the time of this machine's clock."""
    return datetime.now(UTC)


_LONGEST_RUN = timedelta(days=36_500)


class OrchestratorTime:
    """The time of each shard's orchestrator: this machine's clock, unless deliveries show that it is wrong.

    What is left of a packet's life in a delivery says when it was sent. How long it was on its way nobody knows, so
    the time that is reckoned from it, and from the time since boot, is never ahead of the orchestrator's.
    """

    def __init__(self, reader: str) -> None:
        """Make one; `reader` is who reads the deliveries, as the log names it."""
        self._reader = reader
        self._booted: dict[int, tuple[int, datetime]] = {}
        """By shard: the epoch, and when this machine was booted by that orchestrator's clock, or a little earlier."""
        self._wrong: set[int] = set()
        """Shards by which this machine's clock is ahead."""
        self._told: set[int] = set()

    def now(self, shard: int) -> datetime:
        """Return the time by which packets of a shard expire."""
        return self._reckoned(shard) if shard in self._wrong else utc_now()

    def learn(self, packet: Packet, told: "DeliveryHeaders", message: Message) -> None:
        """Take the time that a delivery from a queue tells."""
        time_left = message.expiration_ms
        if told.mark is None or time_left is None or time_left <= 1:  # of what has expired the orchestrator says 1
            return
        try:
            booted = packet.expires - timedelta(milliseconds=time_left) - timedelta(seconds=boottime())
            _ = booted + _LONGEST_RUN  # what is reckoned from it is a time, too
        except OverflowError:
            return
        epoch, known = self._booted.get(told.shard, (told.epoch, booted))
        if told.epoch < epoch:
            return
        if told.epoch > epoch or booted > known:
            known = booted
        self._booted[told.shard] = told.epoch, known
        self._compare(told.shard, packet)

    def _compare(self, shard: int, packet: Packet) -> None:
        ours, theirs = utc_now(), self._reckoned(shard)
        is_behind = theirs - ours > CLOCK_TOLERANCE
        # The broker hands out nothing that has expired.
        is_ahead = ours - packet.expires > CLOCK_TOLERANCE and theirs < packet.expires
        if is_behind or is_ahead:
            if shard not in self._told:
                self._told.add(shard)
                seconds = round((ours - theirs).total_seconds())
                _log.warning(
                    "worker_clock_wrong", reader=self._reader, shard=shard, seconds_ahead=seconds, remedy=SET_CLOCK
                )
            if is_ahead:  # one that is behind is only told of: a time that is too late would expire what is valid
                self._wrong.add(shard)
        elif ours - theirs <= CLOCK_TOLERANCE:
            self._wrong.discard(shard)
            self._told.discard(shard)

    def _reckoned(self, shard: int) -> datetime:
        return self._booted[shard][1] + timedelta(seconds=boottime())


class Orchestrators:
    """What deliveries have told of the orchestrators of all shards; the agents of a host share it.

    Args:
        reader: who reads the deliveries, as the log names it.
    """

    def __init__(self, reader: str) -> None:
        self.time = OrchestratorTime(reader)
        self._fencing_tokens: defaultdict[int, FencingTokens] = defaultdict(FencingTokens)

    def is_fenced(self, told: "DeliveryHeaders") -> bool:
        """Return whether a delivery must be dropped: its batch was never committed."""
        return told.mark is not None and self._fencing_tokens[told.shard].is_fenced(
            told.epoch, told.batch_no, told.mark
        )


# One object for the copies of a packet that reach several agents of one process.
#
# A MULTICAST comes once to each of its recipients, in the same bytes. Reading them is a quarter of what a worker does,
# so agents that share a process share the packet too, where nothing in it can be changed.

MOST = 128
MOST_BYTES = 16 * 1024
"""Larger bodies are read for each agent: they are rare, and would stay in memory."""


class SharedPackets:
    """The last packets that were read, by message id; a packet is shared only for equal bytes."""

    def __init__(self, parse: Callable[[bytes], Packet]) -> None:
        self._parse = parse
        self._known: dict[str, tuple[bytes, Packet]] = {}
        self._adding = Lock()  # agents may run in threads

    def read(self, message_id: str, body: bytes) -> Packet:
        """Return the packet in `body`. Raises what `parse` raises."""
        known = self._known.get(message_id)
        if known is not None and known[0] == body:
            return known[1]
        packet = self._parse(body)
        if len(body) <= MOST_BYTES and is_unchangeable(packet):
            with self._adding:
                if len(self._known) >= MOST:
                    del self._known[next(iter(self._known))]
                self._known[message_id] = (body, packet)
        return packet


@lru_cache(1024)
def _places(model: type[BaseModel]) -> "tuple[attrgetter[Any], ...] | None":
    """Return the optional fields that may hold something that can change; None when one of the others does."""
    paths = _paths(model)
    return None if paths is None else tuple(map(attrgetter, paths))


def is_unchangeable(packet: Packet) -> bool:
    """Return whether nothing in a packet can be changed: no mapping, no list, however deep."""
    places = _places(type(packet))
    return places is not None and all(place(packet) is None for place in places)


def _paths(model: type[BaseModel]) -> list[str] | None:
    if not model.model_config.get("frozen"):
        return None
    paths: list[str] = []
    for name, declared in model.model_fields.items():
        kind = declared.annotation
        if _is_unchangeable(kind):
            continue
        if type(None) in get_args(kind):
            paths.append(name)
        elif isinstance(kind, type) and issubclass(kind, BaseModel) and (inner := _paths(kind)) is not None:
            paths += [f"{name}.{path}" for path in inner]
        else:
            return None
    return paths


def _is_unchangeable(annotation: Any) -> bool:
    origin = get_origin(annotation)
    if origin is Literal or annotation is type(None) or annotation is Ellipsis:
        return True
    if origin in (Union, UnionType, tuple, frozenset):
        return all(map(_is_unchangeable, get_args(annotation)))
    if origin is Annotated:
        return _is_unchangeable(get_args(annotation)[0])
    if not isinstance(annotation, type) or annotation is object:
        return False
    if issubclass(annotation, BaseModel):
        return _paths(annotation) == []
    return issubclass(annotation, str | int | float | UUID | datetime | bytes | Enum)


# The phase of a session, as the newest delivery header or SYNC tells it.

MAX_SESSIONS = 10_000
"""Sessions remembered; the one that was silent longest is forgotten first and known again at its next delivery."""
MAX_ROOTS = 10_000
"""Packets whose root is remembered, so that an id alone names them as parents."""


@dataclass(frozen=True, slots=True)
class SessionPosition:
    """Where a session stands; `step` orders the moments of a session."""

    step: int = 0
    run_phase: RunPhase = RunPhase.RESEARCH
    round: int = 0
    generation: int = 0
    contract: str = ""
    """The contract that the session's START named; empty = the deployment's default."""


@dataclass(slots=True)
class SessionKnowledge:
    """The newest moment of a session, its last SYNC and its vector clock."""

    moment: SessionPosition = field(default_factory=SessionPosition)
    sync: SessionState | None = None
    clock: dict[str, int] = field(default_factory=dict)


class KnownSessions:
    """Everything this worker has learned of its sessions; bounded, in memory, rebuilt from what is delivered."""

    def __init__(self, agent_id: str, max_sessions: int = MAX_SESSIONS) -> None:
        self._agent_id = agent_id
        self._max_sessions = max_sessions
        self._known: OrderedDict[str, SessionKnowledge] = OrderedDict()
        self._roots: OrderedDict[UUID, UUID] = OrderedDict()

    def of(self, session_id: str) -> SessionKnowledge:
        """Return what is known of a session; of an unknown one, its beginning."""
        known = self._known.get(session_id)
        if known is None:
            known = self._known[session_id] = SessionKnowledge()
            if len(self._known) > self._max_sessions:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(session_id)
        return known

    def learn(self, packet: Packet, moment: SessionPosition | None) -> SessionKnowledge:
        """Take over what a delivered packet tells; an older moment never replaces a newer one."""
        known = self.of(packet.trace.session_id)
        if moment is not None and moment.step >= known.moment.step:
            known.moment = moment
        payload = packet.payload
        if type(payload) is SignalPayload and payload.signal is Signal.SYNC:
            self._learn_sync(packet, payload, known)
        if packet.trace.vector_clock:
            _merge(known.clock, packet.trace.vector_clock)
        self.note_root(packet)
        return known

    def note_root(self, packet: Packet) -> None:
        """Remember the root of a packet, so that it can be named as a parent by its id alone."""
        self._roots[packet.packet_id] = packet.trace.root_packet_id
        if len(self._roots) > MAX_ROOTS:
            self._roots.popitem(last=False)

    def note_start(self, packet: Packet) -> None:
        """Take the phase and the contract of a session that this agent opens, until the orchestrator tells them."""
        payload = packet.payload
        if not isinstance(payload, SignalFields) or not isinstance(payload.session, TaskSessionSpec):
            return
        known = self.of(packet.trace.session_id)
        if known.moment.step == 0:
            known.moment = SessionPosition(run_phase=RunPhase.EXECUTION, contract=payload.session.contract)

    def root_of(self, packet_id: UUID) -> UUID | None:
        """Return the root of a packet that this worker has seen or emitted lately."""
        return self._roots.get(packet_id)

    def tick(self, session_id: str) -> dict[str, int]:
        """Add one to this agent's clock in the session; return a copy of the whole vector clock."""
        clock = self.of(session_id).clock
        clock[self._agent_id] = clock.get(self._agent_id, 0) + 1
        return dict(clock)

    def _learn_sync(self, packet: Packet, payload: SignalPayload, known: SessionKnowledge) -> None:
        state = payload.session
        if not isinstance(state, SessionState) or packet.sender.agent_id != ORCHESTRATOR:
            return
        if state.step >= known.moment.step:
            known.moment = SessionPosition(
                state.step, state.run_phase, state.round, state.generation, state.contract or ""
            )
        if known.sync is None or state.step >= known.sync.step:
            known.sync = state


def _merge(clock: dict[str, int], other: Mapping[str, int]) -> None:
    for agent_id, count in other.items():
        if count > clock.get(agent_id, -1):
            clock[agent_id] = count


# A packet as the orchestrator hands it to this worker, with what its headers say.

_delivered = SharedPackets(parse_checked_packet)
"""Of all agents in this process."""


class DeliveryHeaders(msgspec.Struct, frozen=True):
    """The orchestrator's headers of one delivery."""

    shard: int
    epoch: int
    batch_no: int
    mark: tuple[int, int] | None
    """None on the gate's NACKs, which belong to no batch."""
    attempt: int
    moment: SessionPosition | None
    """None when the orchestrator holds no such session."""
    rights: frozenset[Right] = frozenset()
    """Those of the packet's sender."""


@dataclass(slots=True, eq=False)
class Inbound:
    """A packet that waits for its handler, or is in it."""

    packet: Packet
    attempt: int
    shard: int
    has_receipts: bool
    """False for what has no lifecycle at the orchestrator: its NACKs, and packets between the agent's own modules."""
    is_urgent: bool
    trace: TraceHeaders = field(default_factory=lambda: NO_TRACE)
    """The trace that the packet belongs to."""
    rights: frozenset[Right] = frozenset()
    """The sender's, as the orchestrator knows them."""
    risk: "Risk | None" = None
    """Of a packet that is handled alone: former workers ended without explanation (`apc_bus.last_resort`)."""
    delivery: Delivery | None = None
    """What a child process would handle; None where none does."""
    now: Callable[[], datetime] = utc_now
    """The time by which it expires."""
    is_heard: bool = False
    """Read from the substrate, not delivered to this agent."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Ends when the delivery may be acknowledged, or fails with what the broker does instead."""

    @property
    def key(self) -> DeliveryKey:
        """(packet_id, attempt)."""
        return (self.packet.packet_id, self.attempt)

    @property
    def session_id(self) -> str:
        """The packet's session."""
        return self.packet.trace.session_id

    def log_ids(self) -> LogIds:
        """Return what every line says that is logged while it is handled."""
        return {
            "packet_id": str(self.packet.packet_id),
            "session_id": self.session_id,
            "run_id": self.packet.trace.run_id,
            "attempt": self.attempt,
        }


def read_body(message: Message) -> Packet:
    """Return the packet of a message, strictly read by the orchestrator or else here.

    The broker compares user_id with the publisher's login, and gives no agent the orchestrator's user: what has that
    user_id is what an orchestrator has read strictly, byte for byte. Anything else is read strictly here.

    Raises:
        PacketRefused: bytes that are no packet.
    """
    if message.user_id == ORCHESTRATOR:
        return _delivered.read(message.message_id, message.body)
    return parse_packet(message.body)


def read_headers(values: Mapping[str, HeaderValue]) -> DeliveryHeaders | None:
    """Return the orchestrator's headers; None without an epoch. Raises ValueError for what cannot be read."""
    if headers.UNREADABLE in values:
        raise ValueError("its AMQP properties cannot be read")
    if headers.EPOCH not in values:
        return None
    return DeliveryHeaders(
        shard=_number(values, headers.SHARD),
        epoch=_number(values, headers.EPOCH),
        batch_no=_number(values, headers.BATCH),
        mark=None if values.get(headers.MARK) is None else _fencing_token(str(values[headers.MARK])),
        attempt=_number(values, headers.ATTEMPT, 1),
        moment=_position(values) if headers.STATE_STEP in values else None,
        rights=_rights(str(values.get(headers.RIGHTS) or "")),
    )


def is_refusal(packet: Packet) -> bool:
    """Return whether this is the gate's own NACK of a refused packet: no log entry, so it has no lifecycle."""
    return (
        packet.packet_type is PacketType.NACK
        and isinstance(packet, NackPacket)
        and packet.sender.agent_id == ORCHESTRATOR
        and packet.packet_id == reply_id(packet.payload.acked_packet_id, ORCHESTRATOR, NACK_ORDINAL)
    )


def is_acceptance(packet: Packet) -> bool:
    """Return whether this is the gate's answer to a sender that has asked for the verdict: no log entry either."""
    return (
        packet.packet_type is PacketType.ACK
        and isinstance(packet, AckPacket)
        and packet.sender.agent_id == ORCHESTRATOR
        and packet.packet_id == reply_id(packet.payload.acked_packet_id, ORCHESTRATOR, ACCEPTANCE_ORDINAL)
    )


# Cached: one delivery after another says the same.
@lru_cache(64)
def _fencing_token(value: str) -> tuple[int, int]:
    epoch, _, batch_no = value.partition(".")
    return int(epoch), int(batch_no)


@lru_cache(64)
def _rights(value: str) -> frozenset[Right]:
    """Return those that this version knows: a later orchestrator may know more."""
    named = value.split(",")
    return frozenset(right for right in Right if right.value in named)


def _position(values: Mapping[str, HeaderValue]) -> SessionPosition:
    return _session_position(
        _number(values, headers.STATE_STEP),
        str(values.get(headers.PHASE, RunPhase.RESEARCH)),
        _number(values, headers.ROUND),
        _number(values, headers.GENERATION),
        str(values.get(headers.CONTRACT, "")),
    )


@lru_cache(1024)
def _session_position(step: int, phase: str, round_: int, generation: int, contract: str) -> SessionPosition:
    return SessionPosition(step, RunPhase(phase), round_, generation, contract)


def _number(values: Mapping[str, HeaderValue], name: str, default: int = 0) -> int:
    value = values.get(name, default)
    return value if type(value) is int else int(str(value))

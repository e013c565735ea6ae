"""The topology as data: exchanges, queues and bindings of APC/1.0 (docs/specification/architecture.md section 3).

One declarer (`apc topology apply`) uses it; services and agents never declare. The in-process broker takes
the same data, so that both adapters route alike.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from apc_bus.errors import PublishUnroutable, TopologyInvalid
from apc_contracts.identity.ids import NUMBERS_OF_SHARDS, SLOTS
from apc_contracts.vocabulary import CONTROL_TYPES, HOST_PATTERN, PacketType

RETRY_DELAYS_MS = tuple(125 << step for step in range(12))
"""How long each delay queue keeps a message: 125 ms, doubling up to 256 s. All messages of a queue wait equally long: a
broker looks at the head only, where a long wait would hold up the short ones behind it."""


def retry_queue(delay_ms: int) -> str:
    """Return the queue in which a retry waits for this time."""
    return f"apc.retry.{delay_ms}ms"


def retry_key(delay_ms: int, shard: int) -> str:
    """Return the key on apc.retry, and again on apc.receipts when the time is over."""
    return f"{delay_ms}ms.{shard}"


def retry_delay_ms(left_ms: int) -> int:
    """Return which delay queue takes a message that has so long to wait.

    The shortest one that is at most a quarter too long; else the longest that is not too long, and what is then left
    is another round: two on average, up to the longest delay.
    """
    for delay in RETRY_DELAYS_MS:
        if left_ms <= delay:
            is_close = delay <= left_ms * 5 / 4 or delay == RETRY_DELAYS_MS[0]
            return delay if is_close else delay // 2
    return RETRY_DELAYS_MS[-1]


INGRESS = "apc.ingress"
RECEIPTS = "apc.receipts"
INTER_AGENT = "apc.inter_agent"
SUBSTRATE = "apc.substrate"
LOG = "apc.log"
RETRY = "apc.retry"
DEAD = "apc.dead"

DEAD_QUEUE = "apc.dead.letters"
SUBSTRATE_STREAM = "apc.substrate.stream"

AGENT_DELIVERY_LIMIT = 20
"""Deliveries of a message to an agent before it is dead-lettered (a crash counts against all prefetched)."""
SERVICE_DELIVERY_LIMIT = 1_000_000
"""Never in practice: an input, a log batch or a dead letter is judged by our validation, not by a count.
Written out, because RabbitMQ 4 has a limit of 20 where none is given."""
# A full queue refuses, so that its publishers wait; a full stream drops its oldest segment.
SHARD_MAX_MESSAGES = 100_000
SHARD_MAX_BYTES = 1 << 30
DEAD_MAX_MESSAGES = 100_000
HOST_MAX_MESSAGES = 200_000
"""In each of a host's two queues, for all its agents."""
SUBSTRATE_MAX_BYTES = 1 << 30
SUBSTRATE_SEGMENT_BYTES = 50_000_000
RETRY_MAX_MESSAGES = 100_000
URGENT_PRIORITY = 5
"""From this priority on a packet goes through the urgent queue, like the control types."""
MAX_KEY_BYTES = 255
"""AMQP 0-9-1: queue names and routing keys are short strings."""

_ENCODED = frozenset(".*#%")
_CODE = re.compile(r"%([0-9a-f]{2})")
_AGENT_QUEUE = re.compile(r"apc\.agent\.(?P<agent>.+)\.(?:urgent|normal)")
_HOST_QUEUE = re.compile(r"apc\.host\.(?P<host>[^.]+)\.(?:urgent|normal)")
_HOST_KEY = re.compile(r"host\.(?P<host>[^.]+)\.(?P<agent>[^.]+)(?P<urgent>\.urgent)?")


class ExchangeKind(StrEnum):
    """How an exchange compares a routing key with its bindings."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


class QueueKind(StrEnum):
    """A replicated queue, or an append-only stream that many read from any offset."""

    QUORUM = "quorum"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    kind: ExchangeKind


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue or stream; limits in messages and bytes, None = unlimited."""

    name: str
    kind: QueueKind = QueueKind.QUORUM
    is_single_active: bool = False
    """One active consumer; the others are hot standbys."""
    dead_letter_exchange: str | None = None
    delivery_limit: int | None = None
    max_messages: int | None = None
    max_bytes: int | None = None
    ttl_ms: int | None = None
    """After so long in the queue a message goes to the dead-letter exchange."""

    @property
    def arguments(self) -> dict[str, str | int | bool]:
        """The queue arguments of RabbitMQ (docs/specification/architecture.md section 9).

        A full queue refuses the publish: nothing is ever dropped from its head.
        """
        arguments: dict[str, str | int | bool] = {"x-queue-type": self.kind.value}
        if self.max_bytes is not None:
            arguments["x-max-length-bytes"] = self.max_bytes
        if self.kind is QueueKind.STREAM:
            return arguments | {"x-stream-max-segment-size-bytes": SUBSTRATE_SEGMENT_BYTES}
        arguments["x-overflow"] = "reject-publish"
        if self.max_messages is not None:
            arguments["x-max-length"] = self.max_messages
        if self.delivery_limit is not None:
            arguments["x-delivery-limit"] = self.delivery_limit
        if self.ttl_ms is not None:
            arguments["x-message-ttl"] = self.ttl_ms
        if self.is_single_active:
            arguments["x-single-active-consumer"] = True
        if self.dead_letter_exchange is not None:
            arguments["x-dead-letter-exchange"] = self.dead_letter_exchange
            arguments["x-dead-letter-strategy"] = "at-least-once"
        return arguments


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages of `exchange` whose key matches go to `queue`."""

    exchange: str
    queue: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class AgentQueues:
    """An agent that gets an inbox; `handles` are its packet types, to which the control types are added."""

    agent_id: str
    swarm_id: str
    handles: frozenset[PacketType] = frozenset()
    broker_user: str | None = None
    """None = the convention `agent.<agent_id>`, or `host.<host>`."""
    host: str | None = None
    """The host whose inbox it shares; None = it has its own queues."""

    @property
    def user(self) -> str:
        """The broker user of the agent."""
        return self.broker_user or (f"agent.{self.agent_id}" if self.host is None else f"host.{self.host}")

    @property
    def names(self) -> tuple[str, str]:
        """The names of the queues in which its packets wait: the urgent one, the normal one."""
        return inbox_queue(self.agent_id, self.host, True), inbox_queue(self.agent_id, self.host, False)


@dataclass(frozen=True, slots=True)
class HostQueues:
    """The inbox of a host, a process that runs many agents: the routing key names the recipient of each message.

    Nothing is declared for an agent of a host. One process consumes; another one of the same host is its standby.
    """

    host: str


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything that exists on the broker."""

    shards: int
    exchanges: tuple[Exchange, ...]
    queues: tuple[Queue, ...]
    bindings: tuple[Binding, ...]
    agents: tuple[AgentQueues, ...] = field(default=())
    hosts: tuple[HostQueues, ...] = field(default=())

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Return (exchange, kind, key, queue) of every binding, and exchanges without one; for `show`.

        The slots of a shard are one row.
        """
        kinds = {exchange.name: exchange.kind.value for exchange in self.exchanges}
        shown = [(binding, self._shown_key(binding)) for binding in self.bindings]
        rows = [(b.exchange, kinds[b.exchange], key, b.queue) for b, key in shown if key is not None]
        bound = {binding.exchange for binding in self.bindings}
        return rows + [(name, kind, "-", "-") for name, kind in kinds.items() if name not in bound]

    def _shown_key(self, binding: Binding) -> str | None:
        """Return the key as `rows` shows it; None for a slot that the row of its shard's first slot covers."""
        if binding.exchange not in (INGRESS, RECEIPTS) or not binding.key.isdecimal():
            return binding.key or "-"
        if int(binding.key) >= self.shards:
            return None
        slots = [str(slot) for slot in range(int(binding.key), SLOTS, self.shards)]
        return ", ".join(slots if len(slots) <= 3 else [*slots[:2], f"… {slots[-1]}"])


def encode_word(identifier: str) -> str:
    """Return an id as one word of a routing key: `.`, `*`, `#`, `%` and upper-case letters percent-encoded.

    Injective, because the hexadecimal digits are lower case and `%` itself is encoded.
    """
    if identifier.islower() and _ENCODED.isdisjoint(identifier):
        return identifier
    return "".join(f"%{ord(c):02x}" if c in _ENCODED or c.isupper() else c for c in identifier)


def decode_word(word: str) -> str | None:
    """Return the id that `encode_word` made this word of; None when it made no such word."""
    identifier = _CODE.sub(lambda code: chr(int(code[1], 16)), word)
    return identifier if identifier and encode_word(identifier) == word else None


def gate_queue(shard: int) -> str:
    """Return the queue of the inputs of a shard: packets and receipts."""
    return f"apc.gate.{shard}"


def log_queue(shard: int) -> str:
    """Return the queue of the log batches of a shard."""
    return f"apc.log.{shard}"


def unroutable(exchange: str, key: str) -> PublishUnroutable:
    """Return the error for a message that no queue takes."""
    is_slot = exchange in (INGRESS, RECEIPTS) and key.isdecimal() and int(key) < SLOTS
    remedy = ": the topology is of release 0.1.0; run `apc topology apply`" if is_slot else ""
    return PublishUnroutable(f"no queue takes key {key!r} of exchange {exchange}{remedy}")


def is_urgent(packet_type: PacketType, priority: int) -> bool:
    """Return whether a packet takes its recipient's urgent queue: control types, and priority 5 or more."""
    return packet_type in CONTROL_TYPES or priority >= URGENT_PRIORITY


def agent_queue(agent_id: str, urgent: bool) -> str:
    """Return the name of one of an agent's two queues; an id has no character that a queue name must not have."""
    return f"apc.agent.{agent_id}.{'urgent' if urgent else 'normal'}"


def intra_exchange(agent_id: str) -> str:
    """Return the agent's own exchange, bound to its own two queues: INTRA_AGENT packets between its processes."""
    return f"apc.intra.{agent_id}"


def intra_key(urgent: bool) -> str:
    """Return the key on an agent's own exchange."""
    return "urgent" if urgent else "normal"


def inbox_capacity(bound: int) -> int:
    """Return how many messages each of an agent's two queues holds, for this bound on outstanding deliveries."""
    return 2 * bound


def host_queue(host: str, urgent: bool) -> str:
    """Return the name of one of the two queues that the agents of a host share."""
    return f"apc.host.{host}.{'urgent' if urgent else 'normal'}"


def inbox_queue(agent_id: str, host: str | None, urgent: bool) -> str:
    """Return the queue in which an agent's packets wait: its own, or that of its host."""
    return agent_queue(agent_id, urgent) if host is None else host_queue(host, urgent)


@lru_cache(16_384)
def host_key(host: str, agent_id: str, urgent: bool) -> str:
    """Return the key on apc.inter_agent of an agent of a host: `host.H.agent`, with a fourth word `urgent`."""
    key = f"host.{host}.{encode_word(agent_id)}"
    return f"{key}.urgent" if urgent else key


def agent_of_queue(name: str) -> str | None:
    """Return the agent whose queue this is; None when it is no agent's own."""
    match = _AGENT_QUEUE.fullmatch(name)
    return None if match is None else match["agent"]


def host_queue_of_key(key: str) -> str | None:
    """Return the queue of a host to which a key on apc.inter_agent leads; None when it leads to an agent's own."""
    sent = _HOST_KEY.fullmatch(key)
    return None if sent is None else host_queue(sent["host"], sent["urgent"] is not None)


def recipient_of(queue: str, key: str) -> str | None:
    """Return the agent to which a message in this queue was sent with this routing key; None when it was none.

    The queue names the agent, or the key does where agents share the queue of a host.
    """
    if _HOST_QUEUE.fullmatch(queue) is None:
        return agent_of_queue(queue)
    sent = _HOST_KEY.fullmatch(key)
    if sent is None or host_queue_of_key(key) != queue:
        return None
    return decode_word(sent["agent"])


@lru_cache(4096)
def routing_key(packet_type: PacketType, swarm_id: str, agent_id: str, urgent: bool) -> str:
    """Return the key on apc.inter_agent: `type.swarm.agent`, with a fourth word `urgent` for the urgent queue.

    Control types are bound to the urgent queue only, so they are always urgent.
    """
    key = f"{packet_type.value.lower()}.{encode_word(swarm_id)}.{encode_word(agent_id)}"
    return f"{key}.urgent" if urgent or packet_type in CONTROL_TYPES else key


def build_topology(shards: int = 1, agents: Sequence[AgentQueues] = (), *, bound: int | None = None) -> Topology:
    """Return the topology for N shards and these agents.

    Args:
        shards: N, a power of two up to 256; every service must use the same.
        agents: those who get an inbox, and those whose host gets one.
        bound: outstanding deliveries per agent, `limits.outstanding_deliveries` of the contract; none = the packaged
            contract's. An inbox holds 2 x bound messages.

    Raises:
        TopologyInvalid: N is no power of two up to 256, an agent is there twice, or ids are too long for a routing key.
    """
    _check(shards, agents)
    if bound is None:
        from apc_contracts.contract.contract import load_contract  # late: agents need the names of queues only

        bound = load_contract().limits.outstanding_deliveries
    hosts = tuple(HostQueues(host) for host in sorted({one.host for one in agents if one.host is not None}))
    own = [agent for agent in agents if agent.host is None]
    queues = [
        # The first shard last: see `check_shards`.
        *(queue for shard in reversed(range(shards)) for queue in _shard_queues(shard)),
        Queue(SUBSTRATE_STREAM, QueueKind.STREAM, max_bytes=SUBSTRATE_MAX_BYTES),
        *(_retry_queue(delay) for delay in RETRY_DELAYS_MS),
        Queue(DEAD_QUEUE, delivery_limit=SERVICE_DELIVERY_LIMIT, max_messages=DEAD_MAX_MESSAGES),
        *(queue for agent in own for queue in _agent_queues(agent, bound)),
        *(queue for host in hosts for queue in _host_queues(host)),
    ]
    bindings = [
        *shard_bindings(shards),
        Binding(SUBSTRATE, SUBSTRATE_STREAM),
        Binding(DEAD, DEAD_QUEUE),
        *(binding for agent in own for binding in agent_bindings(agent, agent.handles)),
        *(binding for agent in own for binding in _intra_bindings(agent)),
        *(binding for host in hosts for binding in _host_bindings(host)),
    ]
    exchanges = _EXCHANGES + tuple(Exchange(intra_exchange(agent.agent_id), ExchangeKind.DIRECT) for agent in own)
    return Topology(shards, exchanges, tuple(queues), tuple(bindings), tuple(agents), hosts)


_EXCHANGES = (
    Exchange(INGRESS, ExchangeKind.DIRECT),
    Exchange(RECEIPTS, ExchangeKind.DIRECT),
    Exchange(INTER_AGENT, ExchangeKind.TOPIC),
    Exchange(SUBSTRATE, ExchangeKind.FANOUT),
    Exchange(LOG, ExchangeKind.DIRECT),
    Exchange(RETRY, ExchangeKind.DIRECT),
    Exchange(DEAD, ExchangeKind.FANOUT),
)


def agent_bindings(agent: AgentQueues, types: Iterable[PacketType]) -> tuple[Binding, ...]:
    """Return the bindings of an agent for these packet types and the control types."""

    def bind(packet_type: PacketType, urgent: bool) -> Binding:
        key = routing_key(packet_type, agent.swarm_id, agent.agent_id, urgent)
        if len(key.encode()) > MAX_KEY_BYTES:
            raise TopologyInvalid(
                f"agent {agent.agent_id!r}: its routing key has more than {MAX_KEY_BYTES} bytes; "
                "choose a shorter agent or swarm id, with fewer upper-case letters and dots"
            )
        return Binding(INTER_AGENT, agent_queue(agent.agent_id, urgent), key)

    urgent = [bind(packet_type, True) for packet_type in sorted(CONTROL_TYPES.union(types))]
    normal = [bind(packet_type, False) for packet_type in sorted(set(types) - CONTROL_TYPES)]
    return (*urgent, *normal)


def _intra_bindings(agent: AgentQueues) -> tuple[Binding, ...]:
    exchange = intra_exchange(agent.agent_id)
    return tuple(Binding(exchange, agent_queue(agent.agent_id, urgent), intra_key(urgent)) for urgent in (True, False))


def _host_bindings(host: HostQueues) -> tuple[Binding, ...]:
    return (
        Binding(INTER_AGENT, host_queue(host.host, urgent=True), f"host.{host.host}.*.urgent"),
        Binding(INTER_AGENT, host_queue(host.host, urgent=False), f"host.{host.host}.*"),
    )


def _check(shards: int, agents: Sequence[AgentQueues]) -> None:
    if shards not in NUMBERS_OF_SHARDS:
        raise TopologyInvalid(f"{shards} shards: APC_SHARDS must be a power of two from 1 to {SLOTS}")
    seen: set[str] = set()
    for agent in agents:
        if agent.agent_id in seen:
            raise TopologyInvalid(f"agent {agent.agent_id!r} is listed twice")
        seen.add(agent.agent_id)
        if agent.host is not None and not re.fullmatch(HOST_PATTERN, agent.host):
            raise TopologyInvalid(
                f"agent {agent.agent_id!r}: the host {agent.host!r} is no id: 1 to 32 of a-z, 0-9, '_' and '-', the "
                "first a letter or a digit"
            )


def _shard_queues(shard: int) -> tuple[Queue, ...]:
    return tuple(
        Queue(
            name,
            is_single_active=True,
            dead_letter_exchange=DEAD,
            delivery_limit=SERVICE_DELIVERY_LIMIT,
            max_messages=SHARD_MAX_MESSAGES,
            max_bytes=SHARD_MAX_BYTES,
        )
        for name in (gate_queue(shard), log_queue(shard))
    )


def shard_bindings(shards: int) -> tuple[Binding, ...]:
    """Return the bindings of the queues of N shards: slot s goes to shard s mod N.

    A number that is no power of two is one of release 0.1.0, which bound each shard by its own number alone.
    """
    slots = range(SLOTS if shards in NUMBERS_OF_SHARDS else shards)
    return (
        *(Binding(name, gate_queue(slot % shards), str(slot)) for name in (INGRESS, RECEIPTS) for slot in slots),
        *(binding for shard in range(shards) for binding in _own_bindings(shard)),
    )


def _own_bindings(shard: int) -> tuple[Binding, ...]:
    return (
        Binding(LOG, log_queue(shard), str(shard)),
        *(Binding(RETRY, retry_queue(delay), retry_key(delay, shard)) for delay in RETRY_DELAYS_MS),
        *(Binding(RECEIPTS, gate_queue(shard), retry_key(delay, shard)) for delay in RETRY_DELAYS_MS),
    )


def _retry_queue(delay_ms: int) -> Queue:
    """Return a retry queue. It leads to the orchestrator: a full or missing inbox would block all other retries."""
    return Queue(
        retry_queue(delay_ms),
        dead_letter_exchange=RECEIPTS,
        delivery_limit=SERVICE_DELIVERY_LIMIT,
        max_messages=RETRY_MAX_MESSAGES,
        ttl_ms=delay_ms,
    )


def _agent_queues(agent: AgentQueues, bound: int) -> tuple[Queue, ...]:
    return tuple(
        Queue(
            agent_queue(agent.agent_id, urgent),
            dead_letter_exchange=DEAD,
            delivery_limit=AGENT_DELIVERY_LIMIT,
            max_messages=inbox_capacity(bound),
        )
        for urgent in (True, False)
    )


def _host_queues(host: HostQueues) -> tuple[Queue, ...]:
    # Without a limit of deliveries: the end of a host counts against thousands of messages that did nothing. The host
    # itself finds the one that ends it (apc_bus.last_resort).
    return tuple(
        Queue(
            host_queue(host.host, urgent),
            is_single_active=True,
            dead_letter_exchange=DEAD,
            delivery_limit=SERVICE_DELIVERY_LIMIT,
            max_messages=HOST_MAX_MESSAGES,
        )
        for urgent in (True, False)
    )

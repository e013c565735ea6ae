"""What commands ask of a RabbitMQ broker and change there: depths, the topology, rights, a login.

They use aio-pika's queues and exchanges, over a separate connection for each act. A depth is asked by a passive
declare: the broker's own lists lag by seconds.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from uuid import uuid4

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractExchange, AbstractQueue
from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelClosed,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ChannelAccessRefused, ConnectionNotAllowed
from yarl import URL

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable, QueueMissing, ShardsDiffer, TopologyConflict
from apc_bus.port import Bus, QueueDepth
from apc_bus.rabbit.connections import Link, Nodes, Timing
from apc_bus.rabbit.consumer import CHANNEL_GONE
from apc_bus.settings import BusSettings
from apc_bus.topology import (
    INGRESS,
    RETRY_DELAYS_MS,
    Binding,
    Exchange,
    Queue,
    Topology,
    agent_bindings,
    agent_queue,
    gate_queue,
    intra_exchange,
    log_queue,
    retry_queue,
    shard_bindings,
)
from apc_contracts.identity.ids import NUMBERS_OF_SHARDS
from apc_contracts.vocabulary import PacketType


@asynccontextmanager
async def _connected(url: str, timing: Timing, purpose: str) -> AsyncIterator[Link]:
    """Open a connection for one act of a command. Raises BusUnavailable."""
    link = await Nodes([url], timing).connect(purpose)
    try:
        yield link
    finally:
        await link.close()


async def _open(link: Link, patience: float, *, confirms: bool = False) -> AbstractChannel:
    """Return a new channel of aio-pika, whose own way of opening one has no limit of time."""
    channel = link.channel(publisher_confirms=confirms)
    async with asyncio.timeout(patience):
        await channel.initialize()
    return channel


async def queue_depth(link: Link, queue: str, patience: float) -> QueueDepth:
    """Ask the broker for the depth of a queue. Raises QueueMissing, BusUnavailable."""
    with told_of_depth(queue), unasked_cancel_fails():
        channel = await _open(link, patience)
        declared = await channel.declare_queue(queue, passive=True, timeout=patience)
        await _close(channel, patience)
    return _depth_of(declared)


@contextmanager
def told_of_depth(queue: str) -> Iterator[None]:
    """Turn what the libraries raise when they ask for a depth into QueueMissing and BusUnavailable."""
    try:
        yield
    except ChannelNotFoundEntity as error:
        raise QueueMissing(f"no queue {queue}: run `apc topology apply`") from error
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker does not tell the depth of {queue}: {error!r}") from error


def _depth_of(declared: AbstractQueue) -> QueueDepth:
    found = declared.declaration_result
    return QueueDepth(found.message_count or 0, found.consumer_count or 0)


async def _close(channel: AbstractChannel, patience: float) -> None:
    async with asyncio.timeout(patience):
        await channel.close()


async def check_shards(bus: Bus, shards: int) -> None:
    """Check that the broker has the queues of this many shards, and of no more; without a topology there is nothing.

    A process with another number would compute other routing keys: its packets would go to shards of other sessions.
    The queues may come while this looks: they are declared from the last shard to the first (`build_topology`), so
    that all are there once the first is.

    Raises:
        ShardsDiffer: the broker has another number. BusUnavailable.
    """
    is_there, is_beyond = [await _has(bus, gate_queue(shard)) for shard in (shards - 1, shards)]
    if is_there and not is_beyond:
        return
    count = 0
    while await _has(bus, gate_queue(count)):
        count += 1
    if count not in (0, shards):
        advice = f"set APC_SHARDS={count} for every process, or " if count in NUMBERS_OF_SHARDS else ""
        raise ShardsDiffer(
            f"APC_SHARDS is {shards}, and the broker has the queues of {count} shards: {advice}change the number as "
            "docs/how-to/operations.md says"
        )


async def _has(bus: Bus, queue: str) -> bool:
    try:
        await bus.depth(queue)
    except QueueMissing:
        return False
    return True


# Declares the topology on a broker, with a deploy-time user: `apc topology apply`.

FAREWELL_SECONDS = 1.0
"""So long consumers may need to hear that their queue was deleted. Measured with 3.10: one that is made again within
20 ms takes its old consumers over, which then get nothing; after 50 ms they are told."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply_rabbit` found and did."""

    shards_before: int
    """Shards that the broker had; 0 = none."""
    queues_deleted: tuple[str, ...] = field(default=())
    """Queues of shards that are no more."""


Objection = Callable[[int], Awaitable[str | None]]
"""Takes the shards that the broker has (0 = none); returns why the log does not allow others, None when it does."""


async def apply_rabbit(
    url: str,
    topology: Topology,
    *,
    new: Collection[str] = (),
    objection: Objection | None = None,
    timing: Timing | None = None,
) -> Applied:
    """Declare exchanges, queues and bindings; remove the bindings of types that an agent handles no more.

    Idempotent. Nothing with messages in it is ever deleted; queues of agents that left stay.

    Args:
        url: AMQP URL of one node, of a user with the right to configure.
        new: queues that never were: nothing consumes them yet, so that they are made without waiting, and they have no
            bindings to remove.
        objection: asked before N changes, when nothing consumes and the queues are empty, and before the first queues
            are made.

    Raises:
        TopologyConflict: the broker holds something of that name with other arguments, or N changes while
            the queues of shards or agents are in use or not drained, or the log objects.
        BusUnavailable: no answer, or the user lacks the right.
    """
    timing = timing or Timing()
    try:
        async with _connected(url, timing, "apc topology") as link:
            with unasked_cancel_fails():
                before = await _shards_on(link, timing)
                deleted = await _change_shards(link, topology, before, objection, timing)
                if await _lacks_queues(link, topology, new, timing):
                    await asyncio.sleep(FAREWELL_SECONDS)
                channel = await _open(link, timing.answer)
                async with asyncio.timeout(10 * timing.answer):
                    await _declare(channel, topology, new)
                return Applied(before, deleted)
    except ChannelPreconditionFailed as error:
        raise TopologyConflict(
            f"{error}: the broker holds it with other arguments; drain and delete it, then apply again"
        ) from error
    except ChannelAccessRefused as error:
        raise BusUnavailable(f"{error}: apply needs a user that may configure everything") from error
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not finish the topology: {error!r}; apply it again") from error


async def _lacks_queues(link: Link, topology: Topology, new: Collection[str], timing: Timing) -> bool:
    """Return whether an old queue of an applied topology is missing: it may have been deleted a moment ago."""
    channel = await _open(link, timing.answer)
    try:
        async with asyncio.timeout(10 * timing.answer):
            await channel.declare_exchange(INGRESS, passive=True)
    except ChannelNotFoundEntity:
        return False
    try:
        async with asyncio.timeout(10 * timing.answer):
            for name in (queue.name for queue in topology.queues if queue.name not in new):
                await channel.declare_queue(name, passive=True)
    except ChannelNotFoundEntity:
        return True
    await _close(channel, timing.answer)
    return False


async def _declare(channel: AbstractChannel, topology: Topology, new: Collection[str]) -> None:
    declared: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
    for item in declared:
        await _declare_one(channel, item)
    await _bind(channel, topology.bindings)
    wanted = set(topology.bindings)
    for agent in topology.agents:
        has_old_bindings = agent.host is None and not set(agent.names) <= set(new)
        if has_old_bindings:
            await _unbind(channel, set(agent_bindings(agent, PacketType)) - wanted)


async def _declare_one(channel: AbstractChannel, item: Exchange | Queue) -> None:
    if isinstance(item, Exchange):
        await channel.declare_exchange(item.name, item.kind.value, durable=True)
    else:
        await channel.declare_queue(item.name, durable=True, arguments=dict(item.arguments))


async def _shards_on(link: Link, timing: Timing) -> int:
    shard = 0
    while await _exists(link, gate_queue(shard), timing):
        shard += 1
    return shard


async def _exists(link: Link, queue: str, timing: Timing) -> bool:
    try:
        await queue_depth(link, queue, timing.answer)
    except QueueMissing:
        return False
    return True


async def _change_shards(
    link: Link, topology: Topology, before: int, objection: Objection | None, timing: Timing
) -> tuple[str, ...]:
    """Refuse a change of N unless nothing is at work; delete the queues of the shards that are no more.

    First what stands still: without consumers the log is what its queues say. Then the log. Last the queues, which are
    cut off before they are looked at again: a message that came meanwhile is kept, and the change is refused.
    """
    wanted = topology.shards
    if before == wanted:
        return ()
    names = [name for shard in range(before) for name in (gate_queue(shard), log_queue(shard))]
    inboxes = dict.fromkeys(name for agent in topology.agents for name in agent.names)
    refused = f"cannot change from {before} to {wanted} shards" if before else f"cannot make {wanted} shards"
    if before:
        await _check_idle(link, [*names, *map(retry_queue, RETRY_DELAYS_MS), *inboxes], refused, timing)
    if objection is not None and (reason := await objection(before)) is not None:
        raise TopologyConflict(f"{refused}: {reason}")
    # A slot leads to one queue: what came by two would be judged twice.
    await _cut_off(link, shard_bindings(before), shard_bindings(wanted), timing)
    surplus = names[2 * wanted :][::-1]  # the first shard last: a change that was interrupted is found again
    if surplus:
        try:
            await asyncio.sleep(FAREWELL_SECONDS)  # what was routed before is in its queue by then
            await _check_idle(link, surplus, refused, timing)
        except TopologyConflict:
            channel = await _open(link, timing.answer)
            async with asyncio.timeout(10 * timing.answer):
                await _bind(channel, shard_bindings(before))
            raise
        await _delete(link, surplus, timing)
    return tuple(surplus[::-1])


async def _check_idle(link: Link, queues: Iterable[str], refused: str, timing: Timing) -> None:
    """Raise TopologyConflict for the first queue that holds a message, or whose consumer may hold one."""
    for name in queues:
        if not await _exists(link, name, timing):
            continue
        depth = await queue_depth(link, name, timing.answer)
        if depth.messages or depth.consumers:
            raise TopologyConflict(
                f"{refused}: {name} has {depth.messages} messages and {depth.consumers} consumers; let every session "
                "end, stop the agents, let the queues drain, stop the services"
            )


async def _cut_off(link: Link, before: Sequence[Binding], after: Sequence[Binding], timing: Timing) -> None:
    channel = await _open(link, timing.answer)
    async with asyncio.timeout(10 * timing.answer):
        await _unbind(channel, set(before) - set(after))
    await _close(channel, timing.answer)


async def _bind(channel: AbstractChannel, bindings: Sequence[Binding]) -> None:
    """Bind in order, without waiting for each: the answer to the last one is that of all."""
    on_wire = await channel.get_underlay_channel()
    for binding in bindings[:-1]:
        await on_wire.queue_bind(binding.queue, binding.exchange, binding.key, nowait=True)
    for binding in bindings[-1:]:
        await on_wire.queue_bind(binding.queue, binding.exchange, binding.key)


async def _unbind(channel: AbstractChannel, bindings: Iterable[Binding]) -> None:
    on_wire = await channel.get_underlay_channel()
    for binding in bindings:
        await on_wire.queue_unbind(binding.queue, binding.exchange, binding.key)


async def _delete(link: Link, queues: Iterable[str], timing: Timing) -> None:
    channel = await _open(link, timing.answer)
    for name in queues:
        try:
            await channel.queue_delete(name, timeout=timing.answer)
        except ChannelNotFoundEntity:
            channel = await _open(link, timing.answer)
    await _close(channel, timing.answer)


async def delete_inbox(url: str, agent_id: str, *, timing: Timing | None = None) -> None:
    """Delete the queues of an agent that runs on a host now, and the exchange between its processes. Idempotent.

    Args:
        url: AMQP URL of one node, of a user with the right to configure.

    Raises:
        BusUnavailable: no answer, or the user lacks the right.
    """
    timing = timing or Timing()
    try:
        async with _connected(url, timing, "apc topology") as link:
            with unasked_cancel_fails():
                await _delete(link, [agent_queue(agent_id, urgent) for urgent in (True, False)], timing)
                channel = await _open(link, timing.answer)
                await channel.exchange_delete(intra_exchange(agent_id), timeout=timing.answer)
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not delete the queues of {agent_id}: {error!r}; try again") from error


# Compares a topology with what a broker holds, by what AMQP can tell: bindings it cannot tell.


@dataclass(slots=True)
class Inspection:
    """What a broker holds of a topology."""

    missing: list[str] = field(default_factory=list)
    """Exchanges and queues that are not there."""
    differing: list[str] = field(default_factory=list)
    """Those that are there with another type or other arguments."""
    is_compared: bool = True
    """False: the user may not declare, so types and arguments could not be compared."""
    depths: dict[str, QueueDepth] = field(default_factory=dict)
    """Of every queue that is there."""


async def inspect_rabbit(url: str, topology: Topology, *, timing: Timing | None = None) -> Inspection:
    """Look at every exchange and queue of `topology`; nothing is made that is not there.

    Args:
        url: AMQP URL of one node; arguments can be compared only by a user with the right to configure.

    Raises:
        BusUnavailable: no answer.
    """
    timing = timing or Timing()
    try:
        async with _connected(url, timing, "apc doctor") as link:
            with unasked_cancel_fails():
                return await _Inspector(link, timing).look(topology)
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not tell its topology: {error!r}") from error


async def takes_message_of(url: str, size: int, *, timing: Timing | None = None) -> bool:
    """Return whether the broker takes a message of so many bytes; it is sent to no queue, and lost.

    The size is the first thing that a broker looks at, before rights and routes.

    Raises:
        BusUnavailable: no answer.
    """
    timing = timing or Timing()
    try:
        async with _connected(url, timing, "apc doctor") as link:
            with unasked_cancel_fails():
                channel = await _open(link, timing.answer, confirms=True)
                await _publish(channel.default_exchange, "apc.doctor.no.queue", timing.answer, bytes(size))
    except ChannelPreconditionFailed:
        return False
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not answer: {error!r}") from error
    return True


async def _publish(exchange: AbstractExchange, key: str, patience: float, body: bytes = b"") -> None:
    """Publish what no queue takes and wait for the confirm; it does not come back, because it is not mandatory."""
    async with asyncio.timeout(patience):
        await exchange.publish(aio_pika.Message(body), key, mandatory=False)


class _Inspector:
    """Asks over one channel, and opens another when a refusal has closed it."""

    def __init__(self, link: Link, timing: Timing) -> None:
        self._link = link
        self._timing = timing
        self._channel: AbstractChannel | None = None
        self._found = Inspection()

    async def look(self, topology: Topology) -> Inspection:
        declared: list[Exchange | Queue] = [*topology.exchanges, *topology.queues]
        async with asyncio.timeout(10 * self._timing.answer):
            for item in declared:
                if await self._is_there(item) and self._found.is_compared:
                    await self._compare(item)
        return self._found

    async def _is_there(self, item: Exchange | Queue) -> bool:
        channel = await self._open()
        try:
            if isinstance(item, Exchange):
                await channel.declare_exchange(item.name, passive=True)
            else:
                self._found.depths[item.name] = _depth_of(await channel.declare_queue(item.name, passive=True))
        except ChannelNotFoundEntity:
            self._channel = None
            self._found.missing.append(item.name)
            return False
        return True

    async def _compare(self, item: Exchange | Queue) -> None:
        """Declare an existing object again: the broker refuses it if anything differs, and otherwise does nothing."""
        channel = await self._open()
        try:
            await _declare_one(channel, item)
        except ChannelPreconditionFailed as error:
            self._channel = None
            self._found.differing.append(f"{item.name} ({error})")
        except ChannelAccessRefused:
            self._channel = None
            self._found.is_compared = False

    async def _open(self) -> AbstractChannel:
        if self._channel is None:
            self._channel = await _open(self._link, self._timing.answer)
        return self._channel


# What a broker user may do, as far as AMQP tells: asked by doing what changes nothing.

NO_KEY = "apc.doctor"
"""A routing key that no queue is bound to."""


@dataclass(frozen=True, slots=True)
class BrokerRights:
    """What the broker did not refuse. Reading cannot be probed: only consuming would show it, and takes messages."""

    may_configure: bool
    may_write: frozenset[str]


async def probe_rights(url: str, exchanges: Iterable[str], *, timing: Timing | None = None) -> BrokerRights:
    """Declare a queue that vanishes at once, and publish to each exchange with a key that leads nowhere.

    Args:
        url: AMQP URL of one node, as the user who is asked about.
        exchanges: direct or topic ones: a fanout exchange has no key that leads nowhere.

    Raises:
        BusUnavailable: no answer.
    """
    timing = timing or Timing()
    try:
        async with _connected(url, timing, "apc doctor") as link:
            with unasked_cancel_fails():
                may_configure = await _may_configure(link, timing.answer)
                may_write = [name for name in exchanges if await _may_write(link, timing.answer, name)]
                return BrokerRights(may_configure, frozenset(may_write))
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not tell the rights of its user: {error!r}") from error


async def _may_configure(link: Link, patience: float) -> bool:
    channel = await _open(link, patience)
    try:
        await channel.declare_queue(f"{NO_KEY}.{uuid4()}", exclusive=True, auto_delete=True, timeout=patience)
    except ChannelAccessRefused:
        return False
    await _close(channel, patience)
    return True


async def _may_write(link: Link, patience: float, name: str) -> bool:
    channel = await _open(link, patience, confirms=True)
    exchange = await channel.get_exchange(name, ensure=False)
    try:
        await _publish(exchange, NO_KEY, patience)
    except ChannelClosed:
        return False  # refused, or no such exchange
    await _close(channel, patience)
    return True


# Asks the broker whether a user and a password are good: the broker alone knows the users of agents.

_REFUSED = (ProbableAuthenticationError, AuthenticationError, ConnectionNotAllowed, InvalidFrameError)
"""A virtual host that is not granted arrives as an unexpected frame."""


async def may_log_in(settings: BusSettings, user: str, password: str) -> bool:
    """Return whether the broker of APC_AMQP_URL lets this user in with this password.

    Raises:
        BusUnavailable: no node answers.
    """
    patience = settings.connect_timeout.total_seconds()
    for node in settings.amqp_nodes:
        url = URL(node).with_user(user).with_password(password)
        try:
            with unasked_cancel_fails():
                link = await aio_pika.connect(url, connection_class=Link, timeout=patience)
        except _REFUSED:
            return False
        except (AMQPError, OSError, TimeoutError):
            continue
        link.patience = patience
        await link.close()
        return True
    raise BusUnavailable("no broker node answers: logins cannot be checked; see APC_AMQP_URL")

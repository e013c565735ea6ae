"""What commands ask of a RabbitMQ broker and change there: depths, the topology, rights, a login.

A depth is asked by a passive declare: the broker's own lists lag by seconds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import aiormq
from aiormq.abc import AbstractConnection
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
    ConnectionNotAllowed,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable, QueueMissing, ShardsDiffer, TopologyConflict
from apc_bus.port import Bus, Message, Publication, QueueDepth
from apc_bus.rabbit.connections import BulkChannel, Link, Nodes, Timing, open_channel
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
    build_topology,
    gate_queue,
    log_queue,
    retry_queue,
)
from apc_contracts.vocabulary import PacketType


async def queue_depth(link: Link, queue: str, patience: float) -> QueueDepth:
    """Ask the broker for the depth of a queue. Raises QueueMissing, BusUnavailable."""
    try:
        with unasked_cancel_fails():
            channel = await open_channel(link, patience)
            declared = await channel.queue_declare(queue, passive=True, timeout=patience)
            await channel.close(timeout=patience)
    except ChannelNotFoundEntity as error:
        raise QueueMissing(f"no queue {queue}: run `apc topology apply`") from error
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker does not tell the depth of {queue}: {error!r}") from error
    return QueueDepth(declared.message_count or 0, declared.consumer_count or 0)


async def check_shards(bus: Bus, shards: int) -> None:
    """Check that the broker has the queues of this many shards, and of no more; without a topology there is nothing.

    A process with another number would compute other routing keys: its packets would go to shards of other sessions.

    Raises:
        ShardsDiffer: the broker has another number. BusUnavailable.
    """
    is_there, is_beyond = [await _has(bus, gate_queue(shard)) for shard in (shards - 1, shards)]
    if is_there and not is_beyond:
        return
    count = 0
    while await _has(bus, gate_queue(count)):
        count += 1
    if count:
        raise ShardsDiffer(
            f"APC_SHARDS is {shards}, and the broker has the queues of {count} shards: set APC_SHARDS={count} for "
            "every process, or change the number as docs/how-to/operations.md says"
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
    url: str, topology: Topology, *, objection: Objection | None = None, timing: Timing | None = None
) -> Applied:
    """Declare exchanges, queues and bindings; remove the bindings of types that an agent handles no more.

    Idempotent. Nothing with messages in it is ever deleted; queues of agents that left stay.

    Args:
        url: AMQP URL of one node, of a user with the right to configure.
        objection: asked before N changes, when nothing consumes and the queues are empty, and before the first queues
            are made.

    Raises:
        TopologyConflict: the broker holds something of that name with other arguments, or N changes while
            the queues of shards or agents are in use or not drained, or the log objects.
        BusUnavailable: no answer, or the user lacks the right.
    """
    timing = timing or Timing()
    link = await Nodes([url], timing).connect("apc topology")
    try:
        with unasked_cancel_fails():
            before = await _shards_on(link, timing)
            deleted = await _change_shards(link, topology, before, objection, timing)
            if await _lacks_queues(link, topology, timing):
                await asyncio.sleep(FAREWELL_SECONDS)
            channel = await open_channel(link, timing.answer)
            async with asyncio.timeout(10 * timing.answer):
                await _declare(channel, topology)
            return Applied(before, deleted)
    except ChannelPreconditionFailed as error:
        raise TopologyConflict(
            f"{error}: the broker holds it with other arguments; drain and delete it, then apply again"
        ) from error
    except ChannelAccessRefused as error:
        raise BusUnavailable(f"{error}: apply needs a user that may configure everything") from error
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not finish the topology: {error!r}; apply it again") from error
    finally:
        await link.close(timing.connect)


async def _lacks_queues(link: Link, topology: Topology, timing: Timing) -> bool:
    """Return whether a queue of an applied topology is missing: it may have been deleted a moment ago."""
    channel = await open_channel(link, timing.answer)
    try:
        async with asyncio.timeout(10 * timing.answer):
            await channel.exchange_declare(INGRESS, passive=True)
    except ChannelNotFoundEntity:
        return False
    try:
        async with asyncio.timeout(10 * timing.answer):
            for queue in topology.queues:
                await channel.queue_declare(queue.name, passive=True)
    except ChannelNotFoundEntity:
        return True
    await channel.close(timeout=timing.answer)
    return False


async def _declare(channel: BulkChannel, topology: Topology) -> None:
    for exchange in topology.exchanges:
        await channel.exchange_declare(exchange.name, exchange_type=exchange.kind.value, durable=True)
    for queue in topology.queues:
        await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
    await _bind(channel, topology.bindings)
    wanted = set(topology.bindings)
    for agent in topology.agents:
        for binding in agent_bindings(agent, PacketType):
            if binding not in wanted:
                await channel.queue_unbind(binding.queue, binding.exchange, binding.key)


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
    inboxes = [agent_queue(agent.agent_id, urgent) for agent in topology.agents for urgent in (True, False)]
    refused = f"cannot change from {before} to {wanted} shards" if before else f"cannot make {wanted} shards"
    if before:
        await _check_idle(link, [*names, *map(retry_queue, RETRY_DELAYS_MS), *inboxes], refused, timing)
    if objection is not None and (reason := await objection(before)) is not None:
        raise TopologyConflict(f"{refused}: {reason}")
    surplus = names[2 * wanted :][::-1]  # the first shard last: a change that was interrupted is found again
    if surplus:
        await _cut_off(link, build_topology(before).bindings, build_topology(wanted).bindings, timing)
        try:
            await asyncio.sleep(FAREWELL_SECONDS)  # what was routed before is in its queue by then
            await _check_idle(link, surplus, refused, timing)
        except TopologyConflict:
            await _bind(await open_channel(link, timing.answer), build_topology(before).bindings)
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
    channel = await open_channel(link, timing.answer)
    for binding in set(before) - set(after):
        await channel.queue_unbind(binding.queue, binding.exchange, binding.key)
    await channel.close(timeout=timing.answer)


async def _bind(channel: BulkChannel, bindings: Iterable[Binding]) -> None:
    for binding in bindings:
        await channel.queue_bind(binding.queue, binding.exchange, binding.key)


async def _delete(link: Link, queues: Iterable[str], timing: Timing) -> None:
    channel = await open_channel(link, timing.answer)
    for name in queues:
        try:
            await channel.queue_delete(name, timeout=timing.answer)
        except ChannelNotFoundEntity:
            channel = await open_channel(link, timing.answer)
    await channel.close(timeout=timing.answer)


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
    link = await Nodes([url], timing).connect("apc doctor")
    try:
        with unasked_cancel_fails():
            return await _Inspector(link, timing).look(topology)
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not tell its topology: {error!r}") from error
    finally:
        await link.close(timing.connect)


async def takes_message_of(url: str, size: int, *, timing: Timing | None = None) -> bool:
    """Return whether the broker takes a message of so many bytes; it is sent to no queue, and lost.

    The size is the first thing that a broker looks at, before rights and routes.

    Raises:
        BusUnavailable: no answer.
    """
    timing = timing or Timing()
    link = await Nodes([url], timing).connect("apc doctor")
    try:
        channel = await open_channel(link, timing.answer)
        probe = Publication("", "apc.doctor.no.queue", Message(bytes(size), "apc-doctor-size"))
        await channel.publish_window([probe], timing.answer)
        return not isinstance(channel.refusal, ChannelPreconditionFailed)
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not answer: {error!r}") from error
    finally:
        await link.close(timing.connect)


class _Inspector:
    """Asks over one channel, and opens another when a refusal has closed it."""

    def __init__(self, link: Link, timing: Timing) -> None:
        self._link = link
        self._timing = timing
        self._channel: BulkChannel | None = None
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
                await channel.exchange_declare(item.name, passive=True)
            else:
                declared = await channel.queue_declare(item.name, passive=True)
                self._found.depths[item.name] = QueueDepth(declared.message_count or 0, declared.consumer_count or 0)
        except ChannelNotFoundEntity:
            self._channel = None
            self._found.missing.append(item.name)
            return False
        return True

    async def _compare(self, item: Exchange | Queue) -> None:
        """Declare an existing object again: the broker refuses it if anything differs, and otherwise does nothing."""
        channel = await self._open()
        try:
            if isinstance(item, Exchange):
                await channel.exchange_declare(item.name, exchange_type=item.kind.value, durable=True)
            else:
                await channel.queue_declare(item.name, durable=True, arguments=dict(item.arguments))
        except ChannelPreconditionFailed as error:
            self._channel = None
            self._found.differing.append(f"{item.name} ({error})")
        except ChannelAccessRefused:
            self._channel = None
            self._found.is_compared = False

    async def _open(self) -> BulkChannel:
        if self._channel is None:
            self._channel = await open_channel(self._link, self._timing.answer)
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
    link = await Nodes([url], timing).connect("apc doctor")
    try:
        with unasked_cancel_fails():
            may_configure = await _may_configure(link, timing.answer)
            may_write = [name for name in exchanges if await _may_write(link, timing.answer, name)]
            return BrokerRights(may_configure, frozenset(may_write))
    except CHANNEL_GONE as error:
        raise BusUnavailable(f"the broker did not tell the rights of its user: {error!r}") from error
    finally:
        await link.close(timing.connect)


async def _may_configure(link: Link, patience: float) -> bool:
    channel = await open_channel(link, patience)
    try:
        await channel.queue_declare(f"{NO_KEY}.{uuid4()}", exclusive=True, auto_delete=True, timeout=patience)
    except ChannelAccessRefused:
        return False
    await channel.close()
    return True


async def _may_write(link: Link, patience: float, exchange: str) -> bool:
    channel = await open_channel(link, patience)
    probe = Publication(exchange, NO_KEY, Message(b"", str(uuid4())))
    window = await channel.publish_window([probe], patience)
    if window.unanswered:
        if channel.refusal is None:
            raise BusUnavailable("the broker did not answer a publish")
        return False  # refused, or no such exchange
    await channel.close()
    return True  # it came back: no queue has that key


# Asks the broker whether a user and a password are good: the broker alone knows the users of agents.

_REFUSED = (ProbableAuthenticationError, AuthenticationError, ConnectionNotAllowed, InvalidFrameError)
"""A virtual host that is not granted arrives as an unexpected frame."""


async def _leave(connection: AbstractConnection, patience: float) -> None:
    """Close the connection; a failure does not matter, because the answer is known."""
    try:
        with unasked_cancel_fails():
            async with asyncio.timeout(patience):
                await connection.close()
    except (AMQPError, OSError, RuntimeError, TimeoutError):
        pass


async def may_log_in(settings: BusSettings, user: str, password: str) -> bool:
    """Return whether the broker of APC_AMQP_URL lets this user in with this password.

    Raises:
        BusUnavailable: no node answers.
    """
    for node in settings.amqp_nodes:
        url = URL(node).with_user(user).with_password(password)
        try:
            with unasked_cancel_fails():
                async with asyncio.timeout(settings.connect_timeout.total_seconds()):
                    connection = await aiormq.connect(url)
        except _REFUSED:
            return False
        except (AMQPConnectionError, AMQPError, OSError, TimeoutError):
            continue
        await _leave(connection, settings.connect_timeout.total_seconds())
        return True
    raise BusUnavailable("no broker node answers: logins cannot be checked; see APC_AMQP_URL")

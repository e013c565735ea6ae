"""Declares the topology on a broker, with a deploy-time user: `apc topology apply`."""

import asyncio
from dataclasses import dataclass, field

from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.delay_queues import RETRY_DELAYS_MS, retry_queue
from apc_bus.errors import BusUnavailable, QueueMissing, TopologyConflict
from apc_bus.rabbit.administration.depth import queue_depth
from apc_bus.rabbit.channel import BulkChannel, open_channel
from apc_bus.rabbit.connections import Link, Nodes, Timing
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE
from apc_bus.topology import INGRESS, Topology, agent_bindings, gate_queue, log_queue
from apc_contracts.vocabulary import PacketType

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


async def apply_rabbit(url: str, topology: Topology, *, timing: Timing | None = None) -> Applied:
    """Declare exchanges, queues and bindings; remove the bindings of types that an agent handles no more.

    Idempotent. Nothing with messages in it is ever deleted; queues of agents that left stay.

    Args:
        url: AMQP URL of one node, of a user with the right to configure.

    Raises:
        TopologyConflict: the broker holds something of that name with other arguments, or N changes while
            the queues of the shards are in use or not drained.
        BusUnavailable: no answer, or the user lacks the right.
    """
    timing = timing or Timing()
    link = await Nodes([url], timing).connect("apc topology")
    try:
        with unasked_cancel_fails():
            before = await _shards_on(link, timing)
            deleted = await _prepare_shards(link, topology.shards, before, timing)
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
    for binding in topology.bindings:
        await channel.queue_bind(binding.queue, binding.exchange, binding.key)
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


async def _prepare_shards(link: Link, wanted: int, before: int, timing: Timing) -> tuple[str, ...]:
    """Refuse a change of N under load; delete the queues of the shards that are no more."""
    if before in (0, wanted):
        return ()
    names = [name for shard in range(before) for name in (gate_queue(shard), log_queue(shard))]
    for name in (*names, *map(retry_queue, RETRY_DELAYS_MS)):
        if not await _exists(link, name, timing):
            continue
        depth = await queue_depth(link, name, timing.answer)
        if depth.messages or depth.consumers:
            raise TopologyConflict(
                f"cannot change from {before} to {wanted} shards: {name} has {depth.messages} messages and "
                f"{depth.consumers} consumers; stop the agents, let the queues drain, stop the services"
            )
    surplus = names[2 * wanted :]
    channel = await open_channel(link, timing.answer)
    for name in surplus:
        try:
            await channel.queue_delete(name, timeout=timing.answer)
        except ChannelNotFoundEntity:
            channel = await open_channel(link, timing.answer)
    await channel.close(timeout=timing.answer)
    return tuple(surplus)

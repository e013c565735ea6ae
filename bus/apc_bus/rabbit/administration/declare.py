"""Declares the topology on a broker, with a deploy-time user: `apc topology apply`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.delay_queues import RETRY_DELAYS_MS, retry_queue
from apc_bus.errors import BusUnavailable, QueueMissing, TopologyConflict
from apc_bus.rabbit.administration.depth import queue_depth
from apc_bus.rabbit.channel import BulkChannel, open_channel
from apc_bus.rabbit.connections import Link, Nodes, Timing
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE
from apc_bus.topology import (
    INGRESS,
    Binding,
    Topology,
    agent_bindings,
    agent_queue,
    build_topology,
    gate_queue,
    log_queue,
)
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

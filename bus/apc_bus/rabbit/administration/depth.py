"""Depth and consumers of a queue, by a passive declare: the broker's own lists lag by seconds."""

from aiormq.exceptions import ChannelNotFoundEntity

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable, QueueMissing, ShardsDiffer
from apc_bus.port import Bus, QueueDepth
from apc_bus.rabbit.channel import open_channel
from apc_bus.rabbit.connections import Link
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE
from apc_bus.topology import gate_queue


async def queue_depth(link: Link, queue: str, patience: float) -> QueueDepth:
    """Ask now. Raises QueueMissing, BusUnavailable."""
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

    A process with another number would compute other routing keys: its packets would go to gates of other sessions.

    Raises:
        ShardsDiffer: the broker has another number. BusUnavailable.
    """
    is_there, is_beyond = [await _has(bus, gate_queue(shard)) for shard in (shards - 1, shards)]
    if is_there and not is_beyond:
        return
    found = 0
    while await _has(bus, gate_queue(found)):
        found += 1
    if found:
        raise ShardsDiffer(
            f"APC_SHARDS is {shards}, and the broker has the queues of {found} shards: set APC_SHARDS={found} for "
            "every process, or change the number as docs/how-to/operations.md says"
        )


async def _has(bus: Bus, queue: str) -> bool:
    try:
        await bus.depth(queue)
    except QueueMissing:
        return False
    return True

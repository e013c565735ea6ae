"""Depth and consumers of a queue, by a passive declare: the broker's own lists lag by seconds."""

from aiormq.exceptions import ChannelNotFoundEntity

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable, QueueMissing
from apc_bus.port import QueueDepth
from apc_bus.rabbit.channel import open_channel
from apc_bus.rabbit.connections import Link
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE


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

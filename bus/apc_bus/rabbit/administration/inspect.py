"""Compares a topology with what a broker holds, by what AMQP can tell: bindings it cannot tell."""

import asyncio
from dataclasses import dataclass, field

from aiormq.exceptions import ChannelAccessRefused, ChannelNotFoundEntity, ChannelPreconditionFailed

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable
from apc_bus.port import Message, Publication, QueueDepth
from apc_bus.rabbit.channel import BulkChannel, open_channel
from apc_bus.rabbit.connections import Link, Nodes, Timing
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE
from apc_bus.topology import Exchange, Queue, Topology


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
        """Declare what is there once more: the broker refuses it when anything differs, and else does nothing."""
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

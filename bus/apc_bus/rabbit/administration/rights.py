"""What a broker user may do, as far as AMQP tells: asked by doing what changes nothing."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import uuid4

from aiormq.exceptions import ChannelAccessRefused

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable
from apc_bus.port import Message, Publication
from apc_bus.rabbit.channel import open_channel
from apc_bus.rabbit.connections import Link, Nodes, Timing
from apc_bus.rabbit.consuming.consumer import CHANNEL_GONE

NO_KEY = "apc.doctor"
"""A routing key that no queue is bound to."""


@dataclass(frozen=True, slots=True)
class BrokerRights:
    """What was not refused. Reading cannot be asked for: only consuming tells, and that takes messages."""

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

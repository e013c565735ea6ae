"""What a hostile client tries at the broker: each act by name, in plain AMQP, without our own bus."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection
from aio_pika.exceptions import AMQPError, ChannelPreconditionFailed
from aiormq.exceptions import ChannelAccessRefused

from apc_bus.topology import RETRY_DELAYS_MS, QueueKind, Topology, gate_queue, retry_queue

OTHERS_INBOX = "apc.agent.beta.normal"
OWN_INBOX = "apc.agent.alpha.normal"
OTHERS_KEY = "idea.blue.beta"
ALPHA, BETA = "agent.alpha", "agent.beta"
FOREIGN_EXCHANGES = ("amq.direct", "amq.fanout", "amq.headers", "amq.match", "amq.topic")

Attempt = Callable[[AbstractChannel, str], Awaitable[object]]
"""Tries an act over a fresh channel, as a user."""


@dataclass(frozen=True, slots=True)
class Act:
    """Something that a user may be allowed to do, or refused."""

    name: str
    attempt: Attempt


async def is_allowed(connection: AbstractConnection, user: str, act: Act) -> bool:
    """Return whether the broker let a user do it; any answer but yes and a refusal for lack of rights is raised."""
    channel = await connection.channel()
    try:
        await act.attempt(channel, user)
    except ChannelAccessRefused:
        return False
    except ChannelPreconditionFailed as error:
        if "user_id property" in str(error):
            return False
        raise
    await channel.close()
    return True


async def may_open(url: str) -> bool:
    """Return whether a connection of this user and virtual host is let in."""
    try:
        connection = await aio_pika.connect(url)
    except AMQPError:
        return False
    await connection.close()
    return True


def acts(topology: Topology) -> Iterator[Act]:
    """Yield every act on every resource of the topology; those that destroy come last."""
    yield from _publishing(topology)
    yield from _reading(topology)
    yield from _declaring(topology)


def _publishing(topology: Topology) -> Iterator[Act]:
    keys = {binding.exchange: binding.key for binding in topology.bindings}
    for exchange in topology.exchanges:
        yield Act(f"publish to {exchange.name}", partial(_publish, exchange.name, keys.get(exchange.name, "0")))
    for queue in (OTHERS_INBOX, OWN_INBOX, gate_queue(0)):
        yield Act(f"publish to the default exchange, key {queue}", partial(_publish, "", queue))
    for name in FOREIGN_EXCHANGES:
        yield Act(f"publish to {name}", partial(_publish, name, "any"))
    for target, key in (("apc.ingress", "0"), ("apc.receipts", "0"), ("apc.intra.alpha", "normal")):
        for header in ("CC", "BCC"):
            headers = {header: [OTHERS_KEY, OTHERS_INBOX]}
            yield Act(f"publish to {target} with {header}", partial(_publish, target, key, headers=headers))
    yield Act("publish to apc.ingress with the user_id of another", _publish_as_another)
    yield Act("publish to apc.ingress without a user_id", partial(_publish, "apc.ingress", "0", is_signed=False))


async def _publish(
    exchange: str,
    key: str,
    channel: AbstractChannel,
    user: str,
    *,
    headers: dict[str, list[str]] | None = None,
    is_signed: bool = True,
) -> None:
    target = channel.default_exchange if not exchange else await channel.get_exchange(exchange, ensure=False)
    message = aio_pika.Message(b"{}", user_id=user if is_signed else None, headers=headers)  # type: ignore[arg-type]
    await target.publish(message, key, mandatory=False)


async def _publish_as_another(channel: AbstractChannel, user: str) -> None:
    await _publish("apc.ingress", "0", channel, ALPHA if user == BETA else BETA)


def _reading(topology: Topology) -> Iterator[Act]:
    # The delay queues differ in their time alone: one stands for all.
    alike = {retry_queue(delay) for delay in RETRY_DELAYS_MS[1:]}
    queues = [queue for queue in topology.queues if queue.name not in alike]
    for queue in queues:
        yield Act(f"consume {queue.name}", partial(_consume, queue.name))
    for queue in queues:
        if queue.kind is QueueKind.QUORUM:  # a stream can be neither purged nor got from, by anybody
            yield Act(f"purge {queue.name}", partial(_purge, queue.name))
        if queue.kind is QueueKind.QUORUM and not queue.is_single_active:  # nor is there a get from such a queue
            yield Act(f"get from {queue.name}", partial(_get, queue.name))
    for name in (OTHERS_INBOX, gate_queue(0)):
        yield Act(f"ask how many messages {name} has (passive declare)", partial(_look, name))


async def _consume(queue: str, channel: AbstractChannel, user: str) -> None:
    async def take(message: object) -> None:
        """Left unacknowledged: it goes back with the channel."""

    await channel.set_qos(prefetch_count=1)
    await (await channel.get_queue(queue, ensure=False)).consume(take)


async def _purge(queue: str, channel: AbstractChannel, user: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).purge()


async def _get(queue: str, channel: AbstractChannel, user: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).get(fail=False)


async def _look(queue: str, channel: AbstractChannel, user: str) -> None:
    await channel.get_queue(queue)


def _declaring(topology: Topology) -> Iterator[Act]:
    arguments = {queue.name: queue.arguments for queue in topology.queues}

    def declare(queue: str, **how: Any) -> Attempt:
        return lambda channel, user: channel.declare_queue(queue, **how)

    yield Act("declare a queue", declare("apc.agent.alpha.more", durable=True))
    yield Act("declare a queue that the broker names", declare("", exclusive=True))
    for queue in (OWN_INBOX, gate_queue(0)):
        yield Act(f"declare {queue} as it is", declare(queue, durable=True, arguments=arguments[queue]))
    yield Act("declare an exchange", lambda channel, user: channel.declare_exchange("apc.intra.gamma"))
    yield Act(
        "declare apc.ingress as it is",
        lambda channel, user: channel.declare_exchange("apc.ingress", "direct", durable=True),
    )
    for queue in (OWN_INBOX, OTHERS_INBOX):
        yield Act(f"bind {queue} to apc.inter_agent with #", partial(_bind, queue, "apc.inter_agent"))
        yield Act(f"unbind {queue} from apc.inter_agent", partial(_unbind, queue, "apc.inter_agent"))
    yield Act(f"bind {OTHERS_INBOX} to apc.intra.alpha", partial(_bind, OTHERS_INBOX, "apc.intra.alpha"))
    yield Act(
        "bind the exchange apc.intra.alpha to apc.inter_agent",
        lambda channel, user: _bind_exchanges("apc.intra.alpha", "apc.inter_agent", channel),
    )
    for queue in (OWN_INBOX, OTHERS_INBOX, gate_queue(0)):
        yield Act(f"delete {queue}", partial(_delete, queue))
    yield Act("delete apc.ingress", lambda channel, user: channel.exchange_delete("apc.ingress"))


async def _bind(queue: str, exchange: str, channel: AbstractChannel, user: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).bind(exchange, "#")


async def _unbind(queue: str, exchange: str, channel: AbstractChannel, user: str) -> None:
    await (await channel.get_queue(queue, ensure=False)).unbind(exchange, "#")


async def _bind_exchanges(target: str, source: str, channel: AbstractChannel) -> None:
    await (await channel.get_exchange(target, ensure=False)).bind(source, "#")


async def _delete(queue: str, channel: AbstractChannel, user: str) -> None:
    await channel.queue_delete(queue)

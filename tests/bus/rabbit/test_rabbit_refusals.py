"""A queue that says no: full, or not found by the channel. Only another channel tells which."""

import asyncio

import aio_pika
import pytest
from pydantic import SecretStr

from apc_bus.errors import PublishNotTaken, PublishRefused
from apc_bus.port import Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, AgentQueues, agent_queue, build_topology
from apc_contracts.vocabulary import PacketType

INBOX = agent_queue("alpha", urgent=False)


def to_alpha(message_id: str) -> Publication:
    return Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", message_id))


async def empty(url: str, queue: str) -> None:
    """Purge a queue."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await (await channel.get_queue(queue)).purge()


async def refused_until_replaced(bus: RabbitBus) -> None:
    """Publish on a bus that this inbox has not answered yet, until that has cost it its channel."""
    await bus.publish(Publication(INTER_AGENT, "idea.red.alpha.urgent", Message(b"{}", "to the other queue")))
    doubted = bus._publisher._channel
    assert doubted is not None
    async with asyncio.timeout(10):
        while bus._publisher._channel is doubted:
            with pytest.raises(PublishNotTaken, match="leader"):
                await bus.publish(to_alpha("second"))
    assert doubted.is_closed, "it was replaced, and is not kept"


async def test_who_was_never_heard_asks_again_on_another_channel(amqp_vhost_url: str) -> None:
    agents = [AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))]
    await apply_rabbit(amqp_vhost_url, build_topology(1, agents, bound=2))
    first, second = [await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url))) for _ in range(2)]
    try:
        refusals: list[Exception] = []
        for number in range(10):
            try:
                await first.publish(to_alpha(f"first-{number}"))
            except PublishRefused as error:
                refusals.append(error)
        assert refusals and not any(isinstance(one, PublishNotTaken) for one in refusals), "it had been heard: full"
        await refused_until_replaced(second)
        await empty(amqp_vhost_url, INBOX)
        for number in range(10):
            try:
                await second.publish(to_alpha(f"third-{number}"))
            except PublishRefused as error:
                refusals.append(error)
        assert not any(isinstance(one, PublishNotTaken) for one in refusals), "it has been heard now"
    finally:
        await first.close()
        await second.close()

"""What happens to a bus when its node dies, freezes, cuts connections or runs out of memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.support.servers import PrivateNode
from tests.support.traffic import publish_until_confirmed
from tests.support.waiting import until

from apc_bus.consuming import handle
from apc_bus.errors import BusError, PublishUnknown, SubscriptionLost
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, LOG, AgentQueues, agent_queue, build_topology, log_queue
from apc_contracts.vocabulary import PacketType

INBOX = agent_queue("alpha", urgent=False)


def to_alpha(message_id: str) -> Publication:
    return Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", message_id))


@pytest.fixture(scope="module")
def node() -> Iterator[PrivateNode]:
    """One node for this module: each test leaves it running."""
    with PrivateNode() as private:
        yield private


@pytest.fixture
async def bus(node: PrivateNode) -> AsyncIterator[RabbitBus]:
    """A bus on a fresh virtual host, with short patience."""
    vhost = f"v{next(_numbers)}"
    await asyncio.to_thread(node.add_vhosts, [vhost])
    await apply_rabbit(node.url(vhost), build_topology(1, [AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))]))
    await asyncio.to_thread(node.persist_declarations)
    settings = BusSettings.model_validate(
        {"amqp_url": SecretStr(node.url(vhost)), "connect_patience": 2, "broker_timeout": 3, "heartbeat": 2}
    )
    bus = await connect_rabbit(settings)
    yield bus
    await bus.close()


_numbers = iter(range(1000))


@pytest.mark.long
@pytest.mark.broker
async def test_a_killed_node_loses_nothing_that_was_confirmed(node: PrivateNode, bus: RabbitBus) -> None:
    for index in range(50):
        await bus.publish(Publication(LOG, "0", Message(b"{}", f"m-{index}")))
    async with bus.subscribe(log_queue(0)) as subscription:
        await subscription.receive()
        await asyncio.to_thread(node.kill)
        with pytest.raises(SubscriptionLost):
            while True:
                await subscription.receive()
        with pytest.raises(BusError):
            await bus.publish(Publication(LOG, "0", Message(b"{}", "while down")))
        assert {"no broker node can be reached", f"queue {log_queue(0)} has no live consumer"} <= {*bus.health.problems}
    await asyncio.to_thread(node.start)
    await publish_until_confirmed(bus, Publication(LOG, "0", Message(b"{}", "after")))
    ids: list[str] = []
    async with bus.subscribe(log_queue(0)) as subscription:
        while "after" not in ids:
            batch = await subscription.receive()
            ids += [delivery.message.message_id for delivery in batch]
            await subscription.ack(batch[-1], multiple=True)
        assert bus.health.problems == []
    assert {f"m-{index}" for index in range(50)} <= set(ids)


@pytest.mark.long
@pytest.mark.broker
async def test_a_handler_comes_back_after_a_restart(node: PrivateNode, bus: RabbitBus) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery: Delivery) -> None:
        await seen.put(delivery.message.message_id)

    async with handle(bus, INBOX, handler):
        await bus.publish(to_alpha("before"))
        assert await seen.get() == "before"
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await publish_until_confirmed(bus, to_alpha("after"))
        while await seen.get() != "after":
            pass
        await until(lambda: not bus.health.problems)


@pytest.mark.long
@pytest.mark.broker
async def test_connections_closed_by_force(node: PrivateNode, bus: RabbitBus) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery: Delivery) -> None:
        await seen.put(delivery.message.message_id)

    async with handle(bus, INBOX, handler), bus.subscribe(log_queue(0)) as subscription:
        waiting = asyncio.ensure_future(subscription.receive())
        await asyncio.to_thread(node.close_connections)
        with pytest.raises(SubscriptionLost):
            await waiting
        await publish_until_confirmed(bus, to_alpha("after"))
        while await seen.get() != "after":
            pass


@pytest.mark.long
@pytest.mark.broker
async def test_a_deleted_queue_is_consumed_again_when_it_is_back(node: PrivateNode, bus: RabbitBus) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handler(delivery: Delivery) -> None:
        await seen.put(delivery.message.message_id)

    url = bus._nodes.shuffled()[0]
    with capture_logs() as logs:
        async with handle(bus, INBOX, handler):
            await asyncio.to_thread(node.ctl, "delete_queue", "-p", url.path.strip("/"), INBOX)
            # Made again within a moment, RabbitMQ 3.10 never tells the consumer, and it starves (measured).
            await until(lambda: any(line["event"] == "consumer_lost" and "no queue" in line["reason"] for line in logs))
            topology = build_topology(1, [AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))])
            await apply_rabbit(str(url), topology)
            await publish_until_confirmed(bus, to_alpha("after"))
            while await seen.get() != "after":
                pass


@pytest.mark.long
@pytest.mark.broker
async def test_an_alarm_blocks_publishes_but_not_acknowledgements(node: PrivateNode, bus: RabbitBus) -> None:
    for index in range(3):
        await bus.publish(to_alpha(f"before-{index}"))
    async with bus.subscribe(INBOX, prefetch=1) as subscription:
        (delivery,) = await subscription.receive()
        await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.00000001")
        try:
            publishing = asyncio.ensure_future(bus.publish(to_alpha("blocked")))
            await until(lambda: bus.health.problems == ["the broker blocks publishers: low on memory"])
            for _ in range(2):  # each acknowledgement brings the next message
                await subscription.ack(delivery)
                (delivery,) = await subscription.receive()
            assert delivery.message.message_id == "before-2"
            await subscription.ack(delivery)
            with pytest.raises(PublishUnknown, match="may be stored"):
                await publishing
            assert bus.health.blocked == "low on memory" and all(one.is_live for one in bus.health.consumers)
            await until(lambda: bus.health.oldest_unconfirmed > 3)
        finally:
            await asyncio.to_thread(node.ctl, "set_vm_memory_high_watermark", "0.6")
        await until(lambda: not bus.health.problems)  # by itself: nobody publishes
        (late,) = await subscription.receive()
        assert late.message.message_id == "blocked"
    await publish_until_confirmed(bus, to_alpha("after"))


@pytest.mark.long
@pytest.mark.broker
async def test_a_freeze_of_the_broker_is_told_by_the_silence(node: PrivateNode, bus: RabbitBus) -> None:
    async with bus.subscribe(log_queue(0)) as subscription:
        node.suspend()
        try:
            await until(lambda: subscription.longest_silence >= 3)
        finally:
            node.resume()
        last_read = subscription.last_read
        await until(lambda: subscription.last_read != last_read)
        assert subscription.longest_silence >= 3  # a freeze that is over is still told

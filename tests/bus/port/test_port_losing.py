"""The port, over both adapters: expiry, dead letters, delivery limits and lost subscriptions."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from apc_bus.errors import BusUnavailable, SubscriptionLost
from apc_bus.port import Bus, Message, Publication
from apc_bus.topology import AGENT_DELIVERY_LIMIT, DEAD_QUEUE, INTER_AGENT, agent_queue

Make = Callable[..., Message]
Connect = Callable[[], Awaitable[Bus]]
Delete = Callable[[str], Awaitable[None]]
INBOX = agent_queue("alpha-1", urgent=False)


def to_alpha(message: Message) -> Publication:
    return Publication(INTER_AGENT, "idea.red.alpha-1", message)


async def test_an_expired_message_is_dead_lettered(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message(b"late", expiration_ms=50)))
    async with bus.subscribe(DEAD_QUEUE) as dead:
        (delivery,) = await dead.receive()
        await dead.ack(delivery)
    assert delivery.message.body == b"late"
    assert delivery.message.expiration_ms is None
    assert delivery.message.user_id == bus.user
    assert delivery.routing_key == "idea.red.alpha-1"
    assert delivery.message.headers["x-first-death-reason"] == "expired"
    assert (await bus.depth(INBOX)).messages == 0


async def test_expiry_works_at_the_head_only(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message(b"stays")))
    await bus.publish(to_alpha(message(b"late", expiration_ms=1)))
    async with bus.subscribe(DEAD_QUEUE) as dead:
        waiting = asyncio.ensure_future(dead.receive())
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        assert not done
        async with bus.subscribe(INBOX) as subscription:
            (first,) = await subscription.receive()
            assert first.message.body == b"stays"
            (expired,) = await waiting
            assert expired.message.body == b"late"


async def test_a_rejected_message_is_dead_lettered(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message(headers={"apc-attempt": 1})))
    async with bus.subscribe(INBOX) as subscription, bus.subscribe(DEAD_QUEUE) as dead:
        (delivery,) = await subscription.receive()
        await subscription.nack(delivery, requeue=False)
        (buried,) = await dead.receive()
        await dead.ack(buried)
    assert buried.message.message_id == delivery.message.message_id
    assert buried.message.headers["apc-attempt"] == 1
    assert buried.message.headers["x-first-death-reason"] == "rejected"


async def test_poison_is_dead_lettered_after_the_delivery_limit(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message()))
    attempts = 0
    async with bus.subscribe(INBOX) as subscription, bus.subscribe(DEAD_QUEUE) as dead:
        waiting = asyncio.ensure_future(dead.receive())
        while not waiting.done():
            receiving = asyncio.ensure_future(subscription.receive())
            await asyncio.wait([waiting, receiving], return_when=asyncio.FIRST_COMPLETED)
            if not receiving.done():
                receiving.cancel()
                break
            (delivery,) = receiving.result()
            attempts += 1
            await subscription.nack(delivery, requeue=True)
        (buried,) = await waiting
    assert attempts == AGENT_DELIVERY_LIMIT + 1
    assert buried.message.headers["x-first-death-reason"] == "delivery_limit"


async def test_the_queue_is_deleted(delete_queue: Delete, bus: Bus, message: Make) -> None:
    async with bus.subscribe(INBOX) as subscription:
        await bus.publish(to_alpha(message()))
        (delivery,) = await subscription.receive()
        waiting = asyncio.ensure_future(subscription.receive())
        await asyncio.sleep(0)
        await delete_queue(INBOX)
        with pytest.raises(SubscriptionLost):
            await waiting
        with pytest.raises(SubscriptionLost):
            await subscription.ack(delivery)


async def test_the_bus_is_closed_under_its_subscription(connect: Connect, message: Make) -> None:
    bus, other = await connect(), await connect()
    await other.publish_all([to_alpha(message()) for _ in range(3)])
    async with bus.subscribe(INBOX) as subscription:
        received = await subscription.receive()
        waiting = asyncio.ensure_future(_until_lost(subscription.receive))
        await bus.close()
        await bus.close()
        await waiting
        with pytest.raises(SubscriptionLost):
            await subscription.ack(received[0])
        with pytest.raises(SubscriptionLost):
            await subscription.nack(received[0], requeue=True)
        with pytest.raises(SubscriptionLost):
            await subscription.publish(to_alpha(message()))
    with pytest.raises(BusUnavailable):
        await bus.publish(to_alpha(message()))
    assert isinstance((await bus.publish_all([to_alpha(message())]))[0], BusUnavailable)
    with pytest.raises(BusUnavailable):
        await bus.depth(INBOX)
    ids: list[str] = []
    async with other.subscribe(INBOX) as subscription:
        while len(ids) < 3:
            batch = await subscription.receive()
            ids += [delivery.message.message_id for delivery in batch]
            await subscription.ack(batch[-1], multiple=True)
    assert ids == ["m-0", "m-1", "m-2"]


async def _until_lost(receive: Callable[[], Awaitable[object]]) -> None:
    with pytest.raises(SubscriptionLost):
        while True:
            await receive()


async def test_acknowledging_twice_ends_the_subscription(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message()))
    async with bus.subscribe(INBOX) as subscription:
        (delivery,) = await subscription.receive()
        await subscription.ack(delivery)
        with pytest.raises(SubscriptionLost):
            await subscription.ack(delivery)
            await subscription.receive()
    assert (await bus.depth(INBOX)).messages == 0

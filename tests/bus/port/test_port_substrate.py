"""The port, over both adapters: the substrate, a log that anybody reads from any offset."""

from collections.abc import Callable

import pytest

from apc_bus.concurrency import boottime
from apc_bus.errors import BusError
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.topology import SUBSTRATE

Make = Callable[..., Message]


async def read(subscription: Subscription, count: int) -> list[Delivery]:
    deliveries: list[Delivery] = []
    while len(deliveries) < count:
        batch = await subscription.receive()
        deliveries += batch
        await subscription.ack(batch[-1], multiple=True)
    return deliveries


def offset_of(delivery: Delivery) -> int:
    assert delivery.offset is not None
    return delivery.offset


async def test_everybody_reads_everything_in_order(bus: Bus, message: Make) -> None:
    await bus.publish_all([Publication(SUBSTRATE, "", message()) for _ in range(300)])
    for _ in range(2):
        async with bus.read_substrate("first") as subscription:
            deliveries = await read(subscription, 300)
        assert [d.message.message_id for d in deliveries] == [f"m-{index}" for index in range(300)]
        offsets = [offset_of(d) for d in deliveries]
        assert offsets == sorted(set(offsets))
        assert deliveries[0].message.user_id == bus.user


async def test_a_reader_resumes_after_the_last_offset(bus: Bus, message: Make) -> None:
    for _ in range(10):
        await bus.publish(Publication(SUBSTRATE, "", message()))
    async with bus.read_substrate("first") as subscription:
        seen = (await read(subscription, 10))[:4]
    async with bus.read_substrate(offset_of(seen[-1]) + 1) as subscription:
        rest = await read(subscription, 6)
    assert [d.message.message_id for d in rest] == [f"m-{index}" for index in range(4, 10)]


async def test_next_gives_only_what_comes(bus: Bus, message: Make) -> None:
    await bus.publish(Publication(SUBSTRATE, "", message(b"before")))
    async with bus.read_substrate("next") as subscription:
        await bus.publish(Publication(SUBSTRATE, "", message(b"after")))
        (delivery,) = await read(subscription, 1)
    assert delivery.message.body == b"after"


async def test_since_gives_what_has_come_from_then_on(bus: Bus, message: Make) -> None:
    begun = boottime()
    await bus.publish(Publication(SUBSTRATE, "", message()))
    async with bus.read_substrate(since=begun) as subscription:
        (delivery,) = await read(subscription, 1)
    assert delivery.message.message_id == "m-0"


async def test_last_ends_with_the_newest(bus: Bus, message: Make) -> None:
    for _ in range(3):
        await bus.publish(Publication(SUBSTRATE, "", message()))
    async with bus.read_substrate("last") as subscription:
        deliveries: list[Delivery] = []
        while not deliveries or deliveries[-1].message.message_id != "m-2":
            deliveries += await read(subscription, 1)
    assert deliveries[-1].message.message_id == "m-2"


async def test_a_stream_takes_nothing_back(bus: Bus, message: Make) -> None:
    async with bus.read_substrate("next") as subscription:
        await bus.publish(Publication(SUBSTRATE, "", message()))
        (delivery,) = await subscription.receive()
        with pytest.raises(BusError, match="takes nothing back"):
            await subscription.nack(delivery, requeue=True)
        await subscription.ack(delivery)

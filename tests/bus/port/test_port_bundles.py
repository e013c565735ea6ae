"""The port, over both adapters: packets for a shard that are published at once, which may share a message."""

import asyncio
from collections.abc import Callable

import pytest

from apc_bus.errors import BusError
from apc_bus.port import Bus, Delivery, Message, Publication, Subscription
from apc_bus.topology import DEAD_QUEUE, INGRESS, gate_queue

Make = Callable[..., Message]
COUNT = 40


def ingress(message: Message) -> Publication:
    return Publication(INGRESS, "0", message)


async def received(subscription: Subscription, count: int) -> list[Delivery]:
    found: list[Delivery] = []
    while len(found) < count:
        found += await subscription.receive()
    return found


def ids(deliveries: list[Delivery]) -> list[str]:
    return [one.message.message_id for one in deliveries]


async def test_each_arrives_as_it_was_sent_in_order(bus: Bus, message: Make) -> None:
    sent = [message(b'{"n":%d}' % n, type="IDEA", headers={"apc-cause": str(n), "n": n}) for n in range(COUNT)]
    assert await bus.publish_all([ingress(one) for one in sent]) == [None] * COUNT
    async with bus.subscribe(gate_queue(0)) as subscription:
        found = await received(subscription, COUNT)
        assert [one.message for one in found] == sent
        assert len({one.tag for one in found}) == COUNT
        await subscription.ack(found[-1], multiple=True)
    assert (await bus.depth(gate_queue(0))).messages == 0


async def test_publishes_of_one_turn_all_arrive(bus: Bus, message: Make) -> None:
    sent = [message() for _ in range(COUNT)]
    await asyncio.gather(*(bus.publish(ingress(one)) for one in sent))
    async with bus.subscribe(gate_queue(0)) as subscription:
        assert sorted(ids(await received(subscription, COUNT))) == sorted(one.message_id for one in sent)


async def test_what_was_not_acknowledged_comes_again(bus: Bus, message: Make) -> None:
    sent = [message() for _ in range(COUNT)]
    await bus.publish_all([ingress(one) for one in sent])
    async with bus.subscribe(gate_queue(0)) as subscription:
        found = await received(subscription, COUNT)
        await subscription.ack(found[4])
        await subscription.ack(found[9], multiple=True)
        await subscription.ack(found[COUNT - 1])
    async with bus.subscribe(gate_queue(0)) as subscription:
        again: list[str] = []
        while sent[COUNT - 2].message_id not in again:
            again += ids(await subscription.receive())
    expected = [one.message_id for one in sent[10 : COUNT - 1]]
    assert [name for name in again if name in expected] == expected, "more may come with them, never less"


async def test_all_singly_acknowledged_is_all_acknowledged(bus: Bus, message: Make) -> None:
    await bus.publish_all([ingress(message()) for _ in range(COUNT)])
    async with bus.subscribe(gate_queue(0)) as subscription:
        for delivery in reversed(await received(subscription, COUNT)):
            await subscription.ack(delivery)
    assert (await bus.depth(gate_queue(0))).messages == 0


async def test_what_is_given_up_reaches_the_dead_letters_with_its_bytes(bus: Bus, message: Make) -> None:
    sent = [message(b'{"n":%d}' % n) for n in range(3)]
    await bus.publish_all([ingress(one) for one in sent])
    async with bus.subscribe(gate_queue(0)) as subscription, bus.subscribe(DEAD_QUEUE) as letters:
        given_up = (await received(subscription, 3))[0]
        await subscription.nack(given_up, requeue=False)
        letter = (await received(letters, 1))[0].message
    assert (letter.body, letter.headers["x-first-death-queue"]) == (given_up.message.body, gate_queue(0))


async def test_a_part_may_be_settled_after_another_of_its_message_was_given_up(bus: Bus, message: Make) -> None:
    """A handler of one does not know what became of the other."""
    await bus.publish_all([ingress(message()) for _ in range(4)])
    async with bus.subscribe(gate_queue(0)) as subscription:
        first, second, third, last = await received(subscription, 4)
        await subscription.nack(second, requeue=False)
        await subscription.ack(first)
        await subscription.nack(third, requeue=False)
        await subscription.ack(last, multiple=True)
        behind = message()
        await bus.publish(ingress(behind))
        assert ids(await received(subscription, 1)) == [behind.message_id]


async def test_a_message_and_what_follows_it_arrive_together_or_not_at_all(bus: Bus, message: Make) -> None:
    first, work, other = message(b'{"n":1}'), message(b'{"n":2}', headers={"apc-opening": True}), message()
    await asyncio.gather(bus.publish(Publication(INGRESS, "0", first, (work,))), bus.publish(ingress(other)))
    async with bus.subscribe(gate_queue(0)) as subscription:
        found = [one.message for one in await received(subscription, 3)]
        assert other in found
        assert [one for one in found if one != other] == [first, work]
        assert found.index(work) == found.index(first) + 1
    with pytest.raises(BusError):
        await bus.publish(Publication(INGRESS, "nowhere", message(), (message(),)))
    await bus.publish(ingress(last := message()))
    async with bus.subscribe(gate_queue(0)) as subscription:
        assert last.message_id in ids(await received(subscription, 4)), "with the three that were given back"

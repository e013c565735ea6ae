"""The port, over both adapters: anyone who takes a queue over gets it in its order, also while it fills."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from apc_bus.port import Bus, Message, Publication, Subscription
from apc_bus.topology import LOG, log_queue

Make = Callable[..., Message]
Connect = Callable[[], Awaitable[Bus]]
HAND_OVERS = 12
QUEUE = log_queue(0)


async def take(subscription: Subscription, count: int) -> list[int]:
    """At least `count` messages, unacknowledged; their numbers."""
    found: list[int] = []
    while len(found) < count:
        found += [int(delivery.message.body) for delivery in await subscription.receive()]
    return found


@pytest.mark.parametrize("is_awaited", [True, False], ids=["with a standby", "without"])
async def test_the_order_survives_a_hand_over(is_awaited: bool, connect: Connect, message: Make) -> None:
    """A log batch before an earlier one is a gap, or fences it: nothing may overtake what is given back."""
    publisher, first, second = await connect(), await connect(), await connect()
    published = 0
    stop = asyncio.Event()

    async def publish() -> None:
        nonlocal published
        while not stop.is_set():
            await publisher.publish(Publication(LOG, "0", message(str(published).encode())))
            published += 1

    async with AsyncExitStack() as stack:
        publishing = asyncio.create_task(publish())
        stack.push_async_callback(asyncio.wait, [publishing])
        stack.callback(stop.set)
        active = await stack.enter_async_context(AsyncExitStack())
        subscription = await active.enter_async_context(first.subscribe(QUEUE, prefetch=5))
        await take(subscription, 5)
        for number in range(HAND_OVERS):
            standby = await stack.enter_async_context(AsyncExitStack())
            bus = (second, first)[number % 2]
            if is_awaited:
                subscription = await standby.enter_async_context(bus.subscribe(QUEUE, prefetch=50))
            await active.aclose()
            if not is_awaited:
                subscription = await standby.enter_async_context(bus.subscribe(QUEUE, prefetch=50))
            found = await take(subscription, 10)
            assert found == list(range(len(found))), f"hand-over {number}"
            active = standby

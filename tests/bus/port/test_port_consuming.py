"""The port, over both adapters: consuming, acknowledging, and what comes again."""

import asyncio
from collections.abc import Callable

import pytest
from tests.bus.conftest import Place

from apc_bus.consuming import handle
from apc_bus.errors import DeadLetter, GiveBack, SubscriptionLost
from apc_bus.port import Bus, Delivery, Message, Publication
from apc_bus.topology import DEAD_QUEUE, INGRESS, INTER_AGENT, LOG, agent_queue, gate_queue, log_queue

Make = Callable[..., Message]
INBOX = agent_queue("alpha-1", urgent=False)
IDEA_TO_ALPHA = "idea.red.alpha-1"


def to_alpha(message: Message) -> Publication:
    return Publication(INTER_AGENT, IDEA_TO_ALPHA, message)


async def test_receive_takes_what_is_there_and_no_more_than_asked(bus: Bus, message: Make) -> None:
    sent = [message(b"x" * 100) for _ in range(9)]
    await bus.publish_all([to_alpha(one) for one in sent])
    ids: list[str] = []
    async with bus.subscribe(INBOX) as subscription:
        while len(ids) < 9:
            batch = await subscription.receive(max_messages=4, max_bytes=250)
            assert 1 <= len(batch) <= 2
            ids += [delivery.message.message_id for delivery in batch]
            await subscription.ack(batch[-1], multiple=True)
    assert ids == [one.message_id for one in sent]


async def test_a_message_larger_than_the_bytes_asked_for_still_comes(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message(b"x" * 300_000)))
    async with bus.subscribe(INBOX) as subscription:
        (delivery,) = await subscription.receive(max_bytes=10)
        assert delivery.message.body == b"x" * 300_000


async def test_unacknowledged_messages_come_again_in_order(bus: Bus, message: Make) -> None:
    sent = [message() for _ in range(5)]
    await bus.publish_all([to_alpha(one) for one in sent])
    async with bus.subscribe(INBOX) as subscription:
        first: list[Delivery] = []
        while len(first) < 5:
            first += await subscription.receive()
        assert not any(delivery.is_redelivered for delivery in first)
        await subscription.ack(first[0])
        await subscription.ack(first[2])
    async with bus.subscribe(INBOX) as subscription:
        again: list[Delivery] = []
        while len(again) < 3:
            again += await subscription.receive()
        assert [d.message.message_id for d in again] == ["m-1", "m-3", "m-4"]
        assert all(delivery.is_redelivered for delivery in again)
        await subscription.ack(again[-1], multiple=True)
    assert (await bus.depth(INBOX)).messages == 0


async def test_prefetch_bounds_what_is_handed_over(bus: Bus, message: Make) -> None:
    await bus.publish_all([to_alpha(message()) for _ in range(6)])
    async with bus.subscribe(INBOX, prefetch=2) as subscription:
        held: list[Delivery] = []
        while len(held) < 2:
            held += await subscription.receive()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await subscription.receive()
        assert (await bus.depth(INBOX)).messages == 4
        await subscription.ack(held[0])
        (third,) = await subscription.receive()
        assert third.message.message_id == "m-2"


async def test_a_nack_with_requeue_comes_again(bus: Bus, message: Make) -> None:
    await bus.publish(to_alpha(message()))
    async with bus.subscribe(INBOX) as subscription:
        (delivery,) = await subscription.receive()
        await subscription.nack(delivery, requeue=True)
        (again,) = await subscription.receive()
        assert again.message.message_id == delivery.message.message_id
        assert again.is_redelivered
        await subscription.ack(again)


async def test_one_consumer_of_a_shard_is_active_and_the_next_takes_over(bus: Bus, message: Make) -> None:
    async with bus.subscribe(gate_queue(0)) as active:
        async with bus.subscribe(gate_queue(0)) as standby:
            await bus.publish(Publication(INGRESS, "0", message()))
            (delivery,) = await active.receive()
            assert delivery.message.message_id == "m-0"
            waiting = asyncio.ensure_future(standby.receive())
            await bus.publish(Publication(INGRESS, "0", message()))
            (second,) = await active.receive()
            assert not waiting.done()
            await active.ack(second)
            await _leave(active)
            (again,) = await waiting
            assert again.message.message_id == "m-0"
            assert again.is_redelivered
            await standby.ack(again)


async def _leave(subscription: object) -> None:
    # What leaving its context does, while the standby's context is still open inside it.
    subscription = getattr(subscription, "_inner", subscription)
    channel = getattr(subscription, "_channel", None)
    if channel is not None:
        subscription.leave()  # type: ignore[attr-defined]
        await channel.close()
    else:
        subscription.end("left")  # type: ignore[attr-defined]


async def test_publishing_on_the_channel_of_the_subscription(bus: Bus, message: Make) -> None:
    async with bus.subscribe(gate_queue(0)) as subscription:
        await subscription.publish(Publication(LOG, "0", message()))
    assert (await bus.depth(log_queue(0))).messages == 1
    with pytest.raises(SubscriptionLost):
        await subscription.publish(Publication(LOG, "0", message()))
    assert (await bus.depth(log_queue(0))).messages == 1


async def test_last_read_moves_and_silence_is_told(bus: Bus, message: Make) -> None:
    async with bus.subscribe(INBOX) as subscription:
        before = subscription.last_read
        await bus.publish(to_alpha(message()))
        await subscription.receive()
        assert subscription.last_read >= before
        assert 0 <= subscription.longest_silence < 60


async def test_a_handler_acknowledges_by_returning(bus: Bus, message: Make) -> None:
    seen: list[str] = []
    is_done = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        assert delivery.message.user_id == bus.user
        seen.append(delivery.message.message_id)
        if len(seen) == 3:
            is_done.set()

    async with handle(bus, INBOX, handler):
        await bus.publish_all([to_alpha(message()) for _ in range(3)])
        await is_done.wait()
    assert sorted(seen) == ["m-0", "m-1", "m-2"]
    assert (await bus.depth(INBOX)).messages == 0


async def test_a_handler_that_raises_gets_the_message_again(bus: Bus, message: Make) -> None:
    attempts: list[bool] = []
    is_done = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        attempts.append(delivery.is_redelivered)
        if len(attempts) == 1:
            raise RuntimeError("the first attempt fails")
        is_done.set()

    async with handle(bus, INBOX, handler):
        await bus.publish(to_alpha(message()))
        await is_done.wait()
    assert attempts == [False, True]
    assert (await bus.depth(INBOX)).messages == 0


async def test_what_a_handler_leaves_comes_again_when_its_consumer_has_ended(bus: Bus, message: Make) -> None:
    calls = 0
    was_called = asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal calls
        calls += 1
        was_called.set()
        raise GiveBack("stopping")

    async with handle(bus, INBOX, handler):
        await bus.publish(to_alpha(message()))
        await was_called.wait()
    async with bus.subscribe(INBOX) as next_consumer:
        (delivery,) = await next_consumer.receive()
        await next_consumer.ack(delivery)
    assert delivery.is_redelivered
    assert calls == 1


async def test_a_handler_sends_to_the_dead_letters(bus: Bus, message: Make) -> None:
    async def handler(delivery: Delivery) -> None:
        raise DeadLetter("hopeless")

    async with handle(bus, INBOX, handler), bus.subscribe(DEAD_QUEUE) as dead:
        await bus.publish(to_alpha(message()))
        (delivery,) = await dead.receive()
        await dead.ack(delivery)
    assert delivery.message.headers["x-first-death-reason"] == "rejected"
    assert delivery.message.headers["x-first-death-queue"] == INBOX


async def test_at_most_prefetch_handlers_at_a_time(bus: Bus, message: Make) -> None:
    running, most, done = 0, 0, 0
    is_done, two_run = asyncio.Event(), asyncio.Event()

    async def handler(delivery: Delivery) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if running == 2:
            two_run.set()
        await two_run.wait()
        running -= 1
        done += 1
        if done == 6:
            is_done.set()

    async with handle(bus, INBOX, handler, prefetch=2):
        await bus.publish_all([to_alpha(message()) for _ in range(6)])
        await is_done.wait()
    assert most == 2


async def test_leaving_waits_for_the_handler_in_flight(bus: Bus, message: Make) -> None:
    has_started, may_end = asyncio.Event(), asyncio.Event()
    finished: list[str] = []

    async def handler(delivery: Delivery) -> None:
        has_started.set()
        await may_end.wait()
        finished.append(delivery.message.message_id)

    async with handle(bus, INBOX, handler):
        await bus.publish(to_alpha(message()))
        await has_started.wait()
        asyncio.get_running_loop().call_later(0.1, may_end.set)
    assert finished == ["m-0"]
    assert (await bus.depth(INBOX)).messages == 0


async def test_an_extended_subscription_goes_on_behind_what_it_holds(bus: Bus, message: Make) -> None:
    """In the order of the queue; what it held before is acknowledged as ever, and the prefetch holds again."""
    sent = [message() for _ in range(7)]
    await bus.publish_all([to_alpha(one) for one in sent])
    held: list[Delivery] = []

    async def receive(count: int) -> None:
        while len(held) < count:
            held.extend(await subscription.receive())

    async with bus.subscribe(INBOX, prefetch=2) as subscription:
        await receive(2)
        for count in (4, 6):
            await subscription.extend()
            await receive(count)
        await subscription.ack(held[0])
        await subscription.ack(held[3], multiple=True)
        with pytest.raises(TimeoutError):  # two are held of the last extension: no more comes
            async with asyncio.timeout(0.3):
                await subscription.receive()
        await subscription.ack(held[5], multiple=True)
        await receive(7)
        await subscription.ack(held[6])
    assert [one.message.message_id for one in held] == [one.message_id for one in sent]
    assert not any(one.is_redelivered for one in held)
    assert (await bus.depth(INBOX)).messages == 0


async def test_many_queues_are_asked_for_their_consumers_at_once(place: Place) -> None:
    """One that is missing has none; a broker that is away says nothing of any."""
    bus = await place.connect()
    missing = agent_queue("nobody", urgent=True)
    async with bus.subscribe(INBOX), bus.subscribe(gate_queue(0)):
        asked = [missing, INBOX, missing, gate_queue(0), log_queue(0)]
        assert await bus.consumers(asked) == {missing: 0, INBOX: 1, gate_queue(0): 1, log_queue(0): 0}
    assert await bus.consumers([INBOX]) == {INBOX: 0}
    assert await bus.consumers([]) == {}
    await bus.close()
    assert await bus.consumers([INBOX, missing]) == {INBOX: None, missing: None}

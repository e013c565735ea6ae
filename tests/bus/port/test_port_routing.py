"""The port, over both adapters: where a message goes, and what the publisher is told."""

import asyncio
from collections.abc import Callable

import pytest

from apc_bus.errors import PublishRefused, PublishUnroutable, QueueMissing
from apc_bus.port import Bus, Message, Publication, Subscription
from apc_bus.topology import (
    INGRESS,
    INTER_AGENT,
    LOG,
    RECEIPTS,
    agent_queue,
    gate_queue,
    log_queue,
    routing_key,
)
from apc_contracts.vocabulary import PacketType

Make = Callable[..., Message]
IDEA_TO_ALPHA = routing_key(PacketType.IDEA, "red", "alpha-1", urgent=False)
IDEA_TO_BETA = routing_key(PacketType.IDEA, "blue", "Beta.2", urgent=False)


async def receive(subscription: Subscription, count: int) -> list[Message]:
    """Return the next messages, acknowledged."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = await subscription.receive(max_messages=count - len(messages))
        messages += [delivery.message for delivery in batch]
        await subscription.ack(batch[-1], multiple=True)
    return messages


async def test_a_message_arrives_as_it_was_sent(bus: Bus) -> None:
    sent = Message(
        body=b'{"exact":  "bytes"}\n',
        message_id="id-1",
        type="IDEA",
        correlation_id="root-1",
        user_id=bus.user,
        expiration_ms=60_000,
        headers={"apc-shard": 3, "apc-signature": "k=v", "flag": True, "none": None, "list": ["a", "b"]},
    )
    async with bus.subscribe(gate_queue(0)) as subscription:
        await bus.publish(Publication(INGRESS, "0", sent))
        (delivery,) = await subscription.receive()
        await subscription.ack(delivery)
    assert delivery.message == sent
    assert delivery.routing_key == "0"
    assert not delivery.is_redelivered
    assert delivery.offset is None


async def test_ingress_and_receipts_meet_in_the_gate_queue_in_order(bus: Bus, message: Make) -> None:
    sent = [message() for _ in range(6)]
    for index, one in enumerate(sent):
        await bus.publish(Publication((INGRESS, RECEIPTS)[index % 2], "0", one))
    async with bus.subscribe(gate_queue(0)) as subscription:
        assert [one.message_id for one in await receive(subscription, 6)] == [m.message_id for m in sent]


async def test_a_key_finds_its_agent_and_queue(bus: Bus, message: Make) -> None:
    await bus.publish(Publication(INTER_AGENT, IDEA_TO_ALPHA, message(b"normal")))
    await bus.publish(
        Publication(INTER_AGENT, routing_key(PacketType.IDEA, "red", "alpha-1", urgent=True), message(b"urgent"))
    )
    await bus.publish(
        Publication(INTER_AGENT, routing_key(PacketType.SIGNAL, "blue", "Beta.2", urgent=False), message(b"signal"))
    )
    assert (await bus.depth(agent_queue("alpha-1", urgent=False))).messages == 1
    assert (await bus.depth(agent_queue("Beta.2", urgent=False))).messages == 0
    async with bus.subscribe(agent_queue("alpha-1", urgent=True)) as subscription:
        assert [one.body for one in await receive(subscription, 1)] == [b"urgent"]
    async with bus.subscribe(agent_queue("Beta.2", urgent=True)) as subscription:
        assert [one.body for one in await receive(subscription, 1)] == [b"signal"]


async def test_multicast_is_one_publish_a_recipient_with_one_message_id(bus: Bus, message: Make) -> None:
    one = message()
    keys = [IDEA_TO_ALPHA, "idea.red.nobody", IDEA_TO_BETA]
    results = await bus.publish_all([Publication(INTER_AGENT, key, one) for key in keys])
    assert results[0] is None
    assert isinstance(results[1], PublishUnroutable)
    assert results[2] is None
    for agent in ("alpha-1", "Beta.2"):
        async with bus.subscribe(agent_queue(agent, urgent=False)) as subscription:
            assert [m.message_id for m in await receive(subscription, 1)] == [one.message_id]


async def test_the_same_message_twice_is_stored_twice(bus: Bus, message: Make) -> None:
    publication = Publication(LOG, "0", message())
    assert await bus.publish_all([publication] * 3) == [None] * 3
    assert (await bus.depth(log_queue(0))).messages == 3


async def test_a_long_batch_keeps_its_order_and_its_results(bus: Bus, message: Make) -> None:
    sent = [message(str(index).encode()) for index in range(1500)]
    publications = [Publication(LOG, "0" if index % 100 else "none", one) for index, one in enumerate(sent)]
    results = await bus.publish_all(publications)
    assert [index for index, result in enumerate(results) if result is not None] == list(range(0, 1500, 100))
    assert all(isinstance(result, PublishUnroutable) for result in results[::100])
    async with bus.subscribe(log_queue(0)) as subscription:
        arrived = [int(one.body) for one in await receive(subscription, 1485)]
    assert arrived == [index for index in range(1500) if index % 100]


async def test_an_unroutable_message_raises(bus: Bus, message: Make) -> None:
    with pytest.raises(PublishUnroutable, match="nobody"):
        await bus.publish(Publication(INTER_AGENT, "idea.red.nobody", message()))


async def test_an_unknown_exchange_is_refused_and_the_others_go_through(bus: Bus, message: Make) -> None:
    publications = [Publication("no.such" if index == 3 else LOG, "0", message()) for index in range(8)]
    results = await bus.publish_all(publications)
    assert isinstance(results[3], PublishRefused)
    assert [result for index, result in enumerate(results) if index != 3] == [None] * 7
    await bus.publish(Publication(LOG, "0", message()))


async def test_one_bad_publish_among_concurrent_ones_is_told_apart(bus: Bus, message: Make) -> None:
    publications = [Publication("no.such" if index == 7 else LOG, "0", message()) for index in range(20)]
    results = await asyncio.gather(*map(bus.publish, publications), return_exceptions=True)
    assert isinstance(results[7], PublishRefused)
    assert [result for index, result in enumerate(results) if index != 7] == [None] * 19
    assert (await bus.depth(log_queue(0))).messages >= 19


async def test_a_foreign_user_id_is_refused(bus: Bus, message: Make) -> None:
    with pytest.raises(PublishRefused, match="somebody-else"):
        await bus.publish(Publication(LOG, "0", message(user_id="somebody-else")))
    await bus.publish(Publication(LOG, "0", message(user_id=None)))
    assert (await bus.depth(log_queue(0))).messages == 1


async def test_a_full_queue_refuses_and_loses_nothing(bus: Bus, message: Make) -> None:
    results = []
    for _ in range(20):  # one by one: the limit of a quorum queue is soft within a burst
        results += await bus.publish_all([Publication(INTER_AGENT, IDEA_TO_ALPHA, message())])
    stored = results.count(None)
    assert 10 <= stored <= 12
    assert all(isinstance(result, PublishRefused) for result in results[stored:])
    assert (await bus.depth(agent_queue("alpha-1", urgent=False))).messages == stored


async def test_an_unknown_queue_is_missing(bus: Bus) -> None:
    with pytest.raises(QueueMissing, match="no-such"):
        await bus.depth("no-such")
    with pytest.raises(QueueMissing, match="no-such"):
        async with bus.subscribe("no-such"):
            raise AssertionError("subscribed")

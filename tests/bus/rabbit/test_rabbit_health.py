"""What a bus says of its health while connections are cut, queues deleted and a broker answers nothing."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import aio_pika
import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr
from structlog.testing import capture_logs
from tests.support.servers import Proxy
from tests.support.waiting import until

from apc_bus.consuming import handle
from apc_bus.errors import BusError, BusUnavailable, GiveBack, PublishUnknown, SubscriptionLost
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, LOG, AgentQueues, agent_queue, build_topology, log_queue
from apc_contracts.vocabulary import PacketType

INBOX = agent_queue("alpha", urgent=False)
ALPHA = build_topology(1, [AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))])


def to_alpha(message_id: str) -> Publication:
    return Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", message_id))


def to_log(message_id: str) -> Publication:
    return Publication(LOG, "0", Message(b"{}", message_id))


@asynccontextmanager
async def connected(url: str, **settings: float) -> AsyncIterator[RabbitBus]:
    short = {"connect_timeout": 1, "connect_patience": 1, "broker_timeout": 2, "consumer_check": 1, "heartbeat": 1}
    bus = await connect_rabbit(BusSettings.model_validate({"amqp_url": SecretStr(url)} | short | settings))
    try:
        yield bus
    finally:
        await bus.close()


@pytest.fixture
async def amqp_url(amqp_vhost_url: str) -> str:
    """A virtual host with one agent's queues."""
    await apply_rabbit(amqp_vhost_url, ALPHA)
    return amqp_vhost_url


@pytest.fixture
async def proxy(amqp_url: str) -> AsyncIterator[Proxy]:
    """A proxy in front of it."""
    async with Proxy.open(amqp_url) as opened:
        yield opened


async def delete(url: str, queue: str) -> None:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.queue_delete(queue)


class Inbox:
    """A handler that notes what it gets."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    async def __call__(self, delivery: Delivery) -> None:
        self.seen.add(delivery.message.message_id)


@asynccontextmanager
async def consuming_log(bus: RabbitBus, prefetch: int = 1000) -> AsyncIterator[set[str]]:
    """A bulk consumer as the services have: anyone who loses the subscription takes it again."""
    seen: set[str] = set()

    async def consume() -> None:
        with suppress(BusError):
            async with bus.subscribe(log_queue(0), prefetch=prefetch) as subscription:
                while True:
                    batch = await subscription.receive()
                    seen.update(delivery.message.message_id for delivery in batch)
                    await subscription.ack(batch[-1], multiple=True)

    consumer = asyncio.create_task(until(consume, None, pause_seconds=0.1))
    try:
        yield seen
    finally:
        consumer.cancel()
        await asyncio.wait([consumer])


def sample(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


async def test_a_cut_is_told_and_both_kinds_of_consumers_come_back(proxy: Proxy) -> None:
    inbox = Inbox()
    async with connected(proxy.url) as bus, handle(bus, INBOX, inbox), consuming_log(bus) as log:
        await until(lambda: not bus.health.problems and len(bus.health.consumers) == 2)
        assert sample("apc_bus_consumers_expected") == sample("apc_bus_consumers_live") == 2
        proxy.freeze()  # what connects again gets no answer
        proxy.cut()
        await until(lambda: not any(one.is_live for one in bus.health.consumers))
        assert {f"queue {queue} has no live consumer" for queue in (INBOX, log_queue(0))} <= set(bus.health.problems)
        assert sample("apc_bus_consumers_expected") == 2 and sample("apc_bus_consumers_live") == 0
        proxy.thaw()
        await until(lambda: not bus.health.problems)  # without a publish: the watchdog has opened that connection too
        await bus.publish(to_alpha("after"))
        await bus.publish(to_log("after"))
        await until(lambda: "after" in inbox.seen and "after" in log)
    assert sample("apc_bus_consumers_expected") == 0


async def test_an_outage_is_told_in_one_line_for_each_that_lost_something(proxy: Proxy) -> None:
    """However often everybody tries again: a minute without a broker gave 800 lines."""
    inbox = Inbox()
    async with connected(proxy.url) as bus, handle(bus, INBOX, inbox):
        await until(lambda: not bus.health.problems)
        with capture_logs() as lines:
            proxy.freeze()
            proxy.cut()
            taken = proxy.taken
            await until(lambda: proxy.taken > taken + 4)
            proxy.thaw()
            await until(lambda: not bus.health.problems)
            await bus.publish(to_alpha("after"))
            await until(lambda: "after" in inbox.seen)
    told = Counter(line["event"] for line in lines if line["log_level"] != "debug")
    assert told.keys() <= {"broker_awaited", "broker_away", "consumer_lost", "broker_back", "connection_close_failed"}
    assert told["broker_awaited"] == told["broker_back"] == told["consumer_lost"] == 1
    assert told["broker_away"] <= 1


async def test_a_deleted_queue_is_missing_until_it_is_consumed_again(amqp_url: str) -> None:
    inbox = Inbox()
    async with connected(amqp_url) as bus, handle(bus, INBOX, inbox), consuming_log(bus) as log:
        await until(lambda: not bus.health.problems)
        for queue in (INBOX, log_queue(0)):
            await delete(amqp_url, queue)
        await until(lambda: len(bus.health.problems) == 2)
        await apply_rabbit(amqp_url, ALPHA)
        await until(lambda: not bus.health.problems)
        await bus.publish(to_alpha("after"))
        await bus.publish(to_log("after"))
        await until(lambda: "after" in inbox.seen and "after" in log)


async def test_the_lag_is_what_waits_in_the_queue(amqp_url: str) -> None:
    async with connected(amqp_url) as bus, bus.subscribe(log_queue(0), prefetch=2) as subscription:
        for index in range(7):
            await bus.publish(to_log(f"m-{index}"))
        await until(lambda: bus.health.consumers[0].lag == 5)
        assert sample("apc_bus_consumer_lag", queue=log_queue(0)) == 5
        for _ in range(7):
            (delivery,) = await subscription.receive(1)
            await subscription.ack(delivery)
        await until(lambda: bus.health.consumers[0].lag == 0)


@pytest.mark.long
async def test_a_broker_that_answers_nothing_leaves_nobody_waiting(proxy: Proxy) -> None:
    async with connected(proxy.url, heartbeat=30, broker_timeout=1) as bus, bus.subscribe(log_queue(0)) as subscription:
        await bus.publish(to_log("before"))
        (delivery,) = await subscription.receive()
        proxy.freeze()
        with pytest.raises(PublishUnknown):
            await subscription.publish(to_log("on the consumer's channel"))
        with pytest.raises(PublishUnknown):
            await bus.publish(to_log("lost"))
        with pytest.raises(BusError):
            await bus.publish(to_log("again"))
        # It is not young again for having been given up.
        await until(lambda: bus.health.oldest_unconfirmed > 3)
        assert any("waits for its confirm" in problem for problem in bus.health.problems)
        await subscription.nack(delivery, requeue=True)
        with pytest.raises(BusUnavailable):
            await bus.depth(log_queue(0))
        with pytest.raises(BusUnavailable):
            async with bus.subscribe(log_queue(0)):
                pass
        proxy.thaw()
        await bus.publish(to_log("after"))
        assert bus.health.oldest_unconfirmed == 0
        with pytest.raises(SubscriptionLost):  # its connection answered nothing, so the next call gave it up
            async with bus.subscribe(log_queue(0)):
                await subscription.receive()
                await subscription.receive()


async def test_closing_ends_a_look_that_gets_no_answer(proxy: Proxy) -> None:
    async with connected(proxy.url, heartbeat=30, broker_timeout=100) as bus:
        with bus._expected.expect(log_queue(0)):
            proxy.freeze()
            link = await bus._consume_link.get()
            await until(lambda: bool(link.underlay.channels))  # the watchdog asks, and nobody answers
            async with asyncio.timeout(20):
                await bus.close()


async def rebuild(url: str, queue: str) -> None:
    """Delete a queue and make it again at once, as no `apc topology apply` does."""
    (made,) = (one for one in ALPHA.queues if one.name == queue)
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.queue_delete(queue)
        declared = await channel.declare_queue(queue, durable=True, arguments=dict(made.arguments))
        for binding in ALPHA.bindings:
            if binding.queue == queue:
                await declared.bind(binding.exchange, binding.key)


async def tells_its_consumers(url: str) -> bool:
    """Return whether the broker tells consumers of a queue that is deleted and made again at once: from 4.0 on."""
    async with await aio_pika.connect(url) as connection:
        assert connection.transport is not None
        version = connection.transport.connection.server_properties["version"]
    text = version.decode() if isinstance(version, bytes) else str(version)
    return int(text.partition(".")[0]) >= 4


async def publish_until(is_so: Callable[[], bool], bus: RabbitBus, publish: Callable[[str], Publication]) -> None:
    """One message after the other."""

    async def is_so_after_another() -> bool:
        with suppress(BusError):
            await bus.publish(publish("after"))
        return is_so()

    await until(is_so_after_another, 60, pause_seconds=0.05)


@pytest.mark.long
@pytest.mark.parametrize("before", [(), ("one", "two")], ids=["nothing received before", "something received before"])
async def test_starved_consumers_are_rebuilt(amqp_url: str, before: tuple[str, ...]) -> None:
    inbox = Inbox()
    with capture_logs() as logs:

        def starved() -> bool:
            return any(line["event"] == "consumer_starved" for line in logs)

        async with (
            connected(amqp_url) as bus,
            handle(bus, INBOX, inbox),
            consuming_log(bus, prefetch=20) as log,
        ):
            for message_id in before:
                await bus.publish(to_alpha(message_id))
                await bus.publish(to_log(message_id))
            await until(lambda: not bus.health.problems and inbox.seen == log == set(before))
            for _ in range(5):  # a broker that is slow in making it tells the consumers: not what this is about
                inbox.seen.clear()
                log.clear()
                for queue in (INBOX, log_queue(0)):
                    await rebuild(amqp_url, queue)
                await asyncio.gather(
                    publish_until(lambda: "after" in inbox.seen, bus, to_alpha),
                    publish_until(lambda: "after" in log, bus, to_log),
                )
                await until(lambda: not bus.health.problems)
                if starved():
                    break
            await until(lambda: all(one.lag == 0 for one in bus.health.consumers))
    if not starved() and await tells_its_consumers(amqp_url):
        pytest.skip("this broker tells its consumers: the fault is of RabbitMQ 3")
    assert starved(), "not exercised: the broker told both of them"


async def test_a_queue_applied_again_at_once_tells_its_consumers(amqp_url: str) -> None:
    inbox = Inbox()
    with capture_logs() as logs:
        async with connected(amqp_url) as bus, handle(bus, INBOX, inbox), consuming_log(bus) as log:
            await until(lambda: not bus.health.problems)
            for queue in (INBOX, log_queue(0)):
                await delete(amqp_url, queue)
            await apply_rabbit(amqp_url, ALPHA)
            await until(lambda: not bus.health.problems)
            await bus.publish(to_alpha("after"))
            await bus.publish(to_log("after"))
            await until(lambda: "after" in inbox.seen and "after" in log)
    assert not any(line["event"] == "consumer_starved" for line in logs)


async def test_what_a_subscription_has_in_progress(amqp_url: str) -> None:
    async with connected(amqp_url) as bus, bus.subscribe(log_queue(0)) as subscription:
        (expected,) = bus._expected
        consumer = expected.consumer
        assert consumer is not None
        for index in range(5):
            await bus.publish(to_log(f"m-{index}"))
        await until(lambda: consumer.received == 5)
        _, second, third, fourth, fifth = await subscription.receive()
        await subscription.ack(second)
        await subscription.ack(third, multiple=True)
        await subscription.nack(fourth, requeue=False)
        assert not consumer.is_idle, f"{fifth.tag} is not settled"
        await subscription.ack(fifth)
        assert consumer.is_idle and consumer.received == 5


async def test_what_a_handler_gave_back_is_still_available(amqp_url: str) -> None:
    seen: list[str] = []

    async def leave(delivery: Delivery) -> None:
        seen.append(delivery.message.message_id)
        raise GiveBack

    async with connected(amqp_url) as bus, handle(bus, INBOX, leave, prefetch=2):
        (expected,) = bus._expected
        for index in range(4):
            await bus.publish(to_alpha(f"m-{index}"))
        await until(lambda: len(seen) == 2 and expected.lag == 2)
        assert expected.consumer is not None and not expected.consumer.is_idle
    assert len(seen) == 2

"""aiormq cancels the calls of a connection that it gives up: to us that is a lost connection, never an end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import aiormq
import pytest
from pydantic import SecretStr
from tests.support.servers import Proxy
from tests.support.waiting import until

from apc_bus.consuming import handle
from apc_bus.errors import BusError, BusUnavailable
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit, connections
from apc_bus.rabbit.administration import inspect_rabbit, may_log_in, probe_rights
from apc_bus.rabbit.connections import BulkChannel
from apc_bus.settings import BusSettings
from apc_bus.topology import INTER_AGENT, LOG, AgentQueues, agent_queue, build_topology, log_queue
from apc_contracts.vocabulary import PacketType

TOPOLOGY = build_topology(1, [AgentQueues("alpha", "red", frozenset({PacketType.IDEA}))])
INBOX = agent_queue("alpha", urgent=False)
Act = Callable[[RabbitBus], Awaitable[object]]


@pytest.fixture
async def settings(amqp_vhost_url: str) -> BusSettings:
    await apply_rabbit(amqp_vhost_url, TOPOLOGY)
    url = SecretStr(amqp_vhost_url)
    return BusSettings.model_validate({"amqp_url": url, "connect_patience": 1, "broker_timeout": 5})


@pytest.fixture
async def bus(settings: BusSettings) -> AsyncIterator[RabbitBus]:
    bus = await connect_rabbit(settings)
    yield bus
    await bus.close()


async def _cancelled(*_: object, **__: object) -> None:
    """What a call raises whose connection aiormq has given up (`FutureStore.reject_all`)."""
    raise asyncio.CancelledError


async def publish(bus: RabbitBus) -> None:
    await bus.publish(Publication(LOG, "0", Message(b"{}", "m")))


async def subscribe(bus: RabbitBus) -> None:
    async with bus.subscribe(log_queue(0)):
        pass


async def read_substrate(bus: RabbitBus) -> None:
    async with bus.read_substrate():
        pass


async def ask_depth(bus: RabbitBus) -> None:
    await bus.depth(log_queue(0))


@pytest.mark.broker
@pytest.mark.parametrize(
    ("owner", "method", "act"),
    [
        (aiormq.Channel, "open", publish),
        (aiormq.Channel, "open", subscribe),
        (aiormq.Channel, "open", ask_depth),
        (aiormq.Channel, "rpc", read_substrate),
        (aiormq.Channel, "basic_qos", subscribe),
        (aiormq.Channel, "basic_consume", subscribe),
        (aiormq.Channel, "queue_declare", ask_depth),
        (aiormq.Channel, "close", ask_depth),
        (BulkChannel, "_send", publish),
    ],
)
async def test_a_call_that_the_library_cancels_is_an_error_of_the_bus(
    bus: RabbitBus, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, act: Act
) -> None:
    await act(bus)  # nothing else stands against it
    await bus._publish_link.drop()  # channels are opened again
    with monkeypatch.context() as fault:
        fault.setattr(owner, method, _cancelled)
        with pytest.raises(BusError):
            await act(bus)
    await act(bus)


@pytest.mark.broker
async def test_a_close_that_the_library_cancels_ends_nobody(
    settings: BusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = await connect_rabbit(settings)
    await publish(bus)
    monkeypatch.setattr(aiormq.Channel, "close", _cancelled)
    async with bus.subscribe(log_queue(0)) as subscription:
        await subscription.receive()
    monkeypatch.setattr(aiormq.Connection, "close", _cancelled)
    await bus.close()


@pytest.mark.broker
async def test_a_connection_that_the_library_cancels_is_tried_again(
    settings: BusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aiormq.Connection, "connect", _cancelled)
    with pytest.raises(BusUnavailable, match="no broker node answers"):
        await connect_rabbit(settings)
    monkeypatch.setattr(aiormq, "connect", _cancelled)
    with pytest.raises(BusUnavailable, match="no broker node answers"):
        await may_log_in(settings, "guest", "guest")


@pytest.mark.broker
async def test_acts_of_an_administrator_that_the_library_cancels_are_errors(
    settings: BusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = settings.amqp_nodes[0]
    acts: list[Callable[[], Awaitable[object]]] = [
        lambda: apply_rabbit(url, TOPOLOGY),
        lambda: inspect_rabbit(url, TOPOLOGY),
        lambda: probe_rights(url, [LOG]),
    ]
    for act in acts:
        await act()
    monkeypatch.setattr(aiormq.Channel, "queue_declare", _cancelled)
    for act in acts:
        with pytest.raises(BusUnavailable):
            await act()


@pytest.mark.broker
async def test_a_consumer_comes_back_and_stays_expected(bus: RabbitBus, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: asyncio.Queue[str] = asyncio.Queue()
    attempts = 0

    async def handler(delivery: Delivery) -> None:
        await seen.put(delivery.message.message_id)

    async def cancelled(*_: object, **__: object) -> None:
        nonlocal attempts
        attempts += 1
        raise asyncio.CancelledError

    async with handle(bus, INBOX, handler):
        with monkeypatch.context() as fault:
            fault.setattr(aiormq.Channel, "basic_consume", cancelled)
            (expected,) = bus._expected
            assert expected.consumer is not None
            expected.consumer.end("a test ends it")
            await until(lambda: attempts == 2)
            assert bus.problems == [f"queue {INBOX} has no live consumer"]
        await bus.publish(Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", "after")))
        assert await seen.get() == "after"
        await until(lambda: bus.problems == [])


@pytest.mark.broker
async def test_a_handler_that_is_cancelled_from_within_gives_its_delivery_back(bus: RabbitBus) -> None:
    attempts = 0

    async def handler(delivery: Delivery) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise asyncio.CancelledError
        assert delivery.is_redelivered

    async with handle(bus, INBOX, handler, prefetch=1):
        await bus.publish(Publication(INTER_AGENT, "idea.red.alpha", Message(b"{}", "m")))
        await until(lambda: attempts == 2)


@pytest.mark.broker
async def test_what_is_open_when_a_node_freezes_ends_with_an_error(
    amqp_vhost_url: str, settings: BusSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No fault is planted: aiormq itself gives the frozen connection up, and cancels what waits on it."""
    monkeypatch.setattr(connections._Connection, "HEARTBEAT_GRACE_MULTIPLIER", 0.5)
    async with Proxy.open(amqp_vhost_url) as proxy:
        update = {"amqp_url": SecretStr(proxy.url), "heartbeat": 1, "broker_timeout": 60, "connect_timeout": 1}
        bus = await connect_rabbit(BusSettings.model_validate(settings.model_dump() | update))
        async with bus.subscribe(log_queue(0)) as subscription:
            waiting = [
                asyncio.create_task(work)
                for work in (bus.depth(log_queue(0)), publish(bus), subscription.receive(), subscribe(bus))
            ]
            proxy.freeze()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(one, BusError) for one in ended), ended
            proxy.thaw()
        await publish(bus)
        assert (await bus.depth(log_queue(0))).messages > 0
        await bus.close()

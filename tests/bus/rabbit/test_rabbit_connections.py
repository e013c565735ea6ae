"""Reaching a broker: credentials, nodes that are away, and the sentence that says how to mend it; leaving it."""

import asyncio
import socket
import time
from collections.abc import Callable

import aio_pika
import aiormq
import pytest
from aiormq.abc import ChannelFrame
from pydantic import SecretStr
from tests.support.servers.ports import free_ports
from tests.support.servers.proxy import Proxy
from yarl import URL

from apc_bus.errors import BusUnavailable
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit, takes_message_of
from apc_bus.rabbit.administration import probe_rights
from apc_bus.rabbit.connections import Nodes, Timing
from apc_bus.settings import BusSettings
from apc_bus.topology import LOG, build_topology, log_queue


def settings(url: str, **values: object) -> BusSettings:
    return BusSettings.model_validate({"amqp_url": SecretStr(url), "connect_patience": 1} | values)


def closed_port() -> int:
    return free_ports(1)[0]


async def test_a_wrong_password_is_said_at_once(amqp_vhost_url: str, exercised: Callable[..., None]) -> None:
    """Matrix row 42."""
    exercised("a wrong password")
    started = time.monotonic()
    with pytest.raises(BusUnavailable, match="refuses user 'guest' or its password"):
        await connect_rabbit(settings(str(URL(amqp_vhost_url).with_password("wrong")), connect_patience=60))
    assert time.monotonic() - started < 30  # no retry: it does not mend itself


async def test_an_unknown_virtual_host_is_said(amqp_vhost_url: str) -> None:
    with pytest.raises(BusUnavailable, match="may not use virtual host 'no-such'"):
        await connect_rabbit(settings(str(URL(amqp_vhost_url).with_path("/no-such"))))


async def test_no_node_answers() -> None:
    port = closed_port()
    with pytest.raises(BusUnavailable, match=rf"127\.0\.0\.1:{port}.*start RabbitMQ or check APC_AMQP_URL"):
        await connect_rabbit(settings(f"amqp://guest:guest@127.0.0.1:{port}/"))


@pytest.mark.parametrize("url", ["amqp://", "amqp://host:notaport/"])
async def test_a_url_that_cannot_be_read(url: str) -> None:
    with pytest.raises(BusUnavailable, match="cannot be read"):
        await connect_rabbit(settings(url))


async def test_no_url_at_all() -> None:
    with pytest.raises(BusUnavailable, match="set APC_AMQP_URL"):
        await connect_rabbit(BusSettings(amqp_url=None))


async def test_a_dead_node_is_passed_over(amqp_vhost_url: str, exercised: Callable[..., None]) -> None:
    """Matrix row 42."""
    dead, attempts = f"amqp://guest:guest@127.0.0.1:{closed_port()}/", 5  # the order is random
    await apply_rabbit(amqp_vhost_url, build_topology())
    seconds = []
    for attempt in range(attempts):
        started = time.monotonic()
        bus = await connect_rabbit(settings(f"{dead}, {amqp_vhost_url}"))
        await bus.publish(Publication(LOG, "0", Message(b"{}", f"m-{attempt}")))
        seconds.append(time.monotonic() - started)
        stored = (await bus.depth(log_queue(0))).messages
        assert bus.user == "guest"
        await bus.close()
    exercised(
        "a node that does not answer",
        packets=attempts,
        injected=attempts,
        lost=max(0, attempts - stored),
        doubled=max(0, stored - attempts),
        recovery_seconds=max(seconds),
    )
    assert stored == attempts


async def test_a_silent_node_is_passed_over(amqp_vhost_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/"
        bus = await connect_rabbit(settings(f"{url},{amqp_vhost_url}", connect_timeout=1, connect_patience=30))
        assert bus.health.problems == []
        await bus.close()


async def test_a_connection_that_the_broker_closes_is_closed_for_aio_pika_too(amqp_vhost_url: str) -> None:
    link = await Nodes([amqp_vhost_url], Timing()).connect("test")
    assert not link.is_closed
    ack = aiormq.spec.Basic.Ack(delivery_tag=1)
    async with asyncio.timeout(20):
        await link.underlay.write_queue.put(ChannelFrame.marshall(channel_number=9, frames=[ack]))  # was never opened
        await link.closed()
    assert link.is_closed and not link.is_alive
    await link.close()


async def test_a_node_that_answers_nothing_does_not_hold_a_close_up(amqp_vhost_url: str) -> None:
    async with Proxy.open(amqp_vhost_url) as proxy:
        link = await Nodes([proxy.url], Timing()).connect("test")
        proxy.freeze()
        link.patience = 0.1
        async with asyncio.timeout(20):
            await link.close()
        assert link.is_closed


async def test_a_channel_of_the_library_may_have_the_number_of_a_closed_bulk_channel(amqp_vhost_url: str) -> None:
    link = await Nodes([amqp_vhost_url], Timing()).connect("test")
    bulk = await link.bulk_channel(5)
    await bulk.close()
    async with asyncio.timeout(20), link.channel(bulk.number) as channel:
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"one"), queue.name)
        async with queue.iterator() as messages:
            async for message in messages:
                assert message.body == b"one"
                break
    await link.close()


async def test_an_answer_that_does_not_come_is_no_answer_to_a_command(amqp_vhost_url: str) -> None:
    """Of a size that the broker takes, and of a right that its user has."""
    timing = Timing(connect=1, answer=0.5)
    async with Proxy.open(amqp_vhost_url) as proxy:
        proxy.freeze_after(b"apc.doctor.no.queue")
        with pytest.raises(BusUnavailable, match="did not answer"):
            await takes_message_of(proxy.url, 1, timing=timing)
        proxy.thaw()
        proxy.freeze_after(b"amq.direct")
        with pytest.raises(BusUnavailable, match="did not tell the rights"):
            await probe_rights(proxy.url, ["amq.direct"], timing=timing)
        proxy.thaw()
        rights = await probe_rights(proxy.url, ["amq.direct", "no.such"])
        assert rights.may_configure and rights.may_write == {"amq.direct"}


async def test_asking_for_a_depth_leaves_nothing_on_the_connection(amqp_vhost_url: str) -> None:
    """The watchdog asks as long as a service runs; each channel of aio-pika's leaves two callbacks there."""
    await apply_rabbit(amqp_vhost_url, build_topology())
    bus = await connect_rabbit(settings(amqp_vhost_url))
    await bus.depth(log_queue(0))
    underlay = (await bus._consume_link.get()).underlay

    def held() -> int:
        return len(underlay._closing._callbacks)

    before = held()
    for _ in range(10):
        await bus.depth(log_queue(0))
    assert held() == before
    await bus.close()

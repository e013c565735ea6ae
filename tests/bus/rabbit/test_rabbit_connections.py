"""Reaching a broker: credentials, nodes that are away, and the sentence that says how to mend it."""

import socket
import time
from collections.abc import Callable

import pytest
from pydantic import SecretStr
from tests.support.servers.ports import free_ports
from yarl import URL

from apc_bus.errors import BusUnavailable
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
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

"""A gate and a log writer that are told to stop while what the broker has handed over is still on its way to them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from pydantic import SecretStr
from tests.integration.conftest import House, Running
from tests.support.servers import Proxy
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.topology import gate_queue, log_queue
from apc_contracts import Packet

ANY_FORMER_PATIENCE = 0.3
"""Seconds; both left when nothing had come for 0.05."""


@pytest.fixture
async def proxy(amqp_vhost_url: str) -> AsyncIterator[Proxy]:
    async with Proxy.open(amqp_vhost_url) as opened:
        yield opened


async def nothing_is_ready(house: House, queue: str) -> None:
    async def is_empty() -> bool:
        return not (await house.agents.bus.depth(queue)).messages

    await until(is_empty)


async def publish(house: House) -> Packet:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
    await house.agents.publish(sent)
    return sent


async def stop_behind(proxy: Proxy, running: Running) -> None:
    """Tell a service to stop; what it was sent reaches it when it has had time to leave without it."""
    running.stop.set()
    await asyncio.wait({running.task}, timeout=ANY_FORMER_PATIENCE)
    proxy.thaw()
    await running.task


async def test_a_gate_that_stops_judges_what_is_still_on_its_way(house: House, proxy: Proxy) -> None:
    near = house.settings
    async with house.persister(), AsyncExitStack() as resources:
        house.settings = near.model_copy(update={"amqp_url": SecretStr(proxy.url)})
        _, running = await resources.enter_async_context(house.gate())
        house.settings = near
        await house.open_session()
        proxy.freeze()
        sent = await publish(house)
        await nothing_is_ready(house, gate_queue(0))
        await stop_behind(proxy, running)
        assert not (await house.agents.bus.depth(gate_queue(0))).messages, "given back, not judged"
        await until(house.is_logged(sent.packet_id))


async def test_a_log_writer_that_stops_writes_what_is_still_on_its_way(house: House, proxy: Proxy) -> None:
    near = house.settings
    async with house.gate(), AsyncExitStack() as resources:
        house.settings = near.model_copy(update={"amqp_url": SecretStr(proxy.url)})
        running = await resources.enter_async_context(house.persister())
        house.settings = near
        await house.open_session()
        proxy.freeze()
        sent = await publish(house)
        (delivery,) = await house.agents.receive("sentinel")
        assert delivery.message.message_id == str(sent.packet_id), "the gate logs before it delivers"
        await nothing_is_ready(house, log_queue(0))
        await stop_behind(proxy, running)
        assert await house.is_logged(sent.packet_id)()

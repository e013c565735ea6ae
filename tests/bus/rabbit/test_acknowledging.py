"""Acknowledgements wait for company, but never long, and the broker never runs dry for them."""

import asyncio

from pydantic import SecretStr

from apc_bus.concurrency import cancelled
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, LOG, build_topology, gate_queue, log_queue


async def test_all_is_acknowledged_when_the_subscription_is_left(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology())
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    publications = [Publication(INGRESS, "0", Message(b"x", f"m-{number}")) for number in range(20)]
    for one in publications:
        await bus.publish(one)  # each in a separate message
    taken: list[Delivery] = []
    async with bus.subscribe(gate_queue(0), prefetch=20) as subscription:
        while len(taken) < 20:
            taken += await subscription.receive()
        await subscription.ack(taken[9], multiple=True)
        for delivery in (taken[19], taken[12], taken[11]):
            await subscription.ack(delivery)
        await subscription.ack(taken[13], multiple=True)
    async with bus.subscribe(gate_queue(0)) as subscription:
        again: list[Delivery] = []
        while len(again) < 5:
            again += await subscription.receive()
    assert [delivery.message.message_id for delivery in again] == [f"m-{number}" for number in range(14, 19)]
    await bus.close()


async def test_a_full_prefetch_is_refilled_at_once(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology())
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    publications = [Publication(INGRESS, "0", Message(b"x", f"m-{number}")) for number in range(6)]
    for one in publications:
        await bus.publish(one)  # each in a separate message
    async with bus.subscribe(gate_queue(0), prefetch=2) as subscription:
        taken = 0
        while taken < 6:
            for delivery in await subscription.receive():
                await subscription.ack(delivery)
                taken += 1
    assert (await bus.depth(gate_queue(0))).messages == 0
    await bus.close()


async def test_refusals_without_end_leave_room_for_others_on_the_connection(amqp_vhost_url: str) -> None:
    """The questions of the watchdog and the heartbeats pass through the same queue: who starves there is cut off."""
    await apply_rabbit(amqp_vhost_url, build_topology())
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    await bus.publish_all([Publication(LOG, "0", Message(b"x", f"m-{number}")) for number in range(300)])

    async def refuse() -> None:
        while True:
            for delivery in await subscription.receive():
                await subscription.nack(delivery, requeue=True)

    async with bus.subscribe(log_queue(0), prefetch=300) as subscription:
        refusing = asyncio.create_task(refuse())
        for _ in range(3):
            await bus.depth(log_queue(0))
        assert not refusing.done()
        await cancelled(refusing)
    await bus.close()

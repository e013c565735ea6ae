"""A FastStream application on the same broker: what it publishes reaches the gate as a packet of its agent."""

import asyncio

import pytest
from faststream.rabbit import RabbitBroker

from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import AgentQueues, build_topology, gate_queue
from apc_contracts import parse_packet
from apc_contracts.vocabulary import PacketType


async def test_an_order_becomes_a_packet_at_the_gate(amqp_vhost_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_AMQP_URL", amqp_vhost_url)
    from examples import faststream_beside as beside

    await apply_rabbit(amqp_vhost_url, build_topology(1, [AgentQueues("desk-1", "sales", frozenset(PacketType))]))
    bus = await connect_rabbit(BusSettings(amqp_url=amqp_vhost_url))
    await beside.broker.start()
    try:
        async with bus.subscribe(gate_queue(0)) as gate, asyncio.timeout(60):
            customer = RabbitBroker(amqp_vhost_url)
            await customer.start()
            await customer.publish({"order_id": "o-1", "session_id": "s-1", "text": "two of the blue ones"}, "orders")
            (delivery,) = await gate.receive()
            await gate.ack(delivery)
            await customer.stop()
    finally:
        await beside.broker.stop()
        await bus.close()
    packet = parse_packet(delivery.message.body)
    assert packet.sender.agent_id == "desk-1" and delivery.message.user_id == bus.user
    assert delivery.message.message_id == str(packet.packet_id) and delivery.message.type == "IDEA"

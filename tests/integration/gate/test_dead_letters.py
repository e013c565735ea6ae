"""Deliveries that reach nobody: each has an end in the log that says why, and the gate goes on."""

import asyncio
from typing import Any

import aio_pika
import pytest
from msgspec.structs import replace
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_bus.port import Delivery
from apc_bus.rabbit import apply_rabbit
from apc_bus.topology import AGENT_DELIVERY_LIMIT, DEAD_QUEUE, AgentQueues, agent_queue, build_topology
from apc_contracts import parse_packet
from apc_contracts.payloads.by_type import ErrorPayload
from apc_contracts.vocabulary import PacketType

REASON = """
SELECT metadata ->> 'error' FROM apc_log.packet_events WHERE packet_id = $1 AND recipient = $2 AND to_state = $3
"""
INBOX = agent_queue("blue-1", urgent=False)


async def delete(url: str, *queues: str) -> None:
    """Delete queues under the one who uses them."""
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        for queue in queues:
            await channel.queue_delete(queue)


async def test_a_rejected_delivery(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    await running.agents.publish(sent)
    async with running.agents.bus.subscribe(INBOX) as inbox:
        (delivery,) = await inbox.receive()
        await inbox.nack(delivery, requeue=False)
        await until(running.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))
    assert await running.pool.fetchval(REASON, sent.packet_id, "blue-1", "DEAD_LETTERED") == "handler_error"
    assert (await running.agents.bus.depth(DEAD_QUEUE)).messages == 0


@pytest.mark.long
async def test_a_delivery_that_nobody_fetches_in_time(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening, ttl_ms=300)
    await running.agents.publish(sent)
    await until(running.has_come_to("EXPIRED", sent.packet_id, "blue-1"))
    assert (await running.agents.bus.depth(INBOX)).messages == 0


async def test_an_inbox_that_is_missing(running: House, amqp_vhost_url: str) -> None:
    await delete(amqp_vhost_url, INBOX)
    sent = make_packet("red-1", make_idea(), ("blue-1", "sentinel"), parent=running.opening)
    await running.agents.publish(sent)
    await until(running.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))
    assert await running.pool.fetchval(REASON, sent.packet_id, "blue-1", "DEAD_LETTERED") == "no_route"
    (delivery,) = await running.agents.receive("sentinel")
    assert delivery.message.message_id == str(sent.packet_id), "the other recipient gets it"


async def test_an_inbox_that_is_full(running: House, amqp_vhost_url: str) -> None:
    """Inboxes are twice the gate's bound; a smaller one, made by hand, refuses, and the gate goes on."""
    await delete(amqp_vhost_url, INBOX, agent_queue("blue-1", urgent=True))
    small = AgentQueues("blue-1", "blue", frozenset(PacketType))
    await apply_rabbit(amqp_vhost_url, build_topology(1, [small], bound=1))
    sent = [make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening) for _ in range(12)]
    for one in sent:
        await running.agents.publish(one)
    dead = f"recipient = 'blue-1' AND metadata ->> 'error' = 'overflow' AND packet_id = '{sent[-1].packet_id}'"

    async def is_refused() -> bool:
        return bool(await running.count("packet_events", dead) == 1)

    await until(is_refused)
    refused = await running.count("packet_events", "metadata ->> 'error' = 'overflow'")
    kept: list[Delivery] = []
    async with running.agents.bus.subscribe(INBOX) as inbox, asyncio.timeout(20):
        while len(kept) + refused < len(sent):
            kept += await inbox.receive()
    assert len(kept) + refused == len(sent)


async def test_a_delivery_that_comes_back_too_often(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
    await running.agents.publish(sent)
    async with running.agents.bus.subscribe(INBOX) as inbox:
        for count in range(AGENT_DELIVERY_LIMIT + 1):
            (delivery,) = await inbox.receive()
            assert delivery.message.headers.get("x-delivery-count", 0) == count
            await inbox.nack(delivery, requeue=True)
        await until(running.has_come_to("DEAD_LETTERED", sent.packet_id, "blue-1"))
    assert await running.pool.fetchval(REASON, sent.packet_id, "blue-1", "DEAD_LETTERED") == "delivery_limit"
    (told,) = await running.agents.receive("red-1", urgent=True)
    error = parse_packet(told.message.body)
    assert (error.packet_type, error.trace.parent_packet_id) == (PacketType.ERROR, sent.packet_id)
    details = error.payload_as(ErrorPayload).details
    assert details is not None and details["reason"] == "delivery_limit"


@pytest.mark.parametrize("urgent", [True, False])
async def test_an_inbox_has_all_that_keeps_its_dead_letters(house: House, amqp_vhost_url: str, urgent: bool) -> None:
    """The broker refuses to declare a queue again with any other argument: these are the ones it has."""
    demanded: dict[str, Any] = {
        "x-queue-type": "quorum",
        "x-overflow": "reject-publish",
        "x-dead-letter-exchange": "apc.dead",
        "x-dead-letter-strategy": "at-least-once",
        "x-delivery-limit": 20,
        "x-max-length": 2000,
    }
    others = {"x-overflow": "drop-head", "x-dead-letter-strategy": "at-most-once", "x-delivery-limit": 19}
    async with await aio_pika.connect(amqp_vhost_url) as connection:
        queue = agent_queue("blue-1", urgent)
        await (await connection.channel()).declare_queue(queue, durable=True, arguments=demanded)
        for name, value in others.items():
            channel = await connection.channel()
            with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match=name):
                await channel.declare_queue(queue, durable=True, arguments=demanded | {name: value})


async def test_an_input_that_dies_while_the_gate_is_away(house: House) -> None:
    """Confirmed, and then expired in the gate's queue: in the log with its bytes, and its sender knows."""
    async with house.persister():
        async with house.gate():
            await house.open_session()
        sent = make_packet("red-1", make_idea(), ("blue-1",), parent=house.opening)
        publication = house.agents.publication(sent)
        await house.agents.bus.publish(replace(publication, message=replace(publication.message, expiration_ms=1)))
        async with house.gate():

            async def is_kept() -> bool:
                return bool(await house.count("packet_conflicts", "kind = 'dead_input'") == 1)

            await until(is_kept)
    row = await house.pool.fetchrow("SELECT packet_id, raw, reason FROM apc_log.packet_conflicts")
    assert (row["packet_id"], row["raw"]) == (sent.packet_id, publication.message.body)
    assert "queue apc.gate.0 (expired)" in row["reason"]
    assert await house.count("agent_packets", f"packet_id = '{sent.packet_id}'") == 0

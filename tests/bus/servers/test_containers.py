"""A broker and a database in containers, wherever an engine answers."""

import asyncio

import asyncpg
import pytest
from tests.support.servers.containers import docker_answers
from tests.support.servers.postgres import container_postgres
from tests.support.servers.rabbit import container_rabbit

from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, AgentQueues, build_topology, gate_queue
from apc_persister.database.migrate import migrate

pytestmark = [
    pytest.mark.skipif(not docker_answers(), reason="no Docker engine answers: servers in containers are not tried"),
    pytest.mark.timeout(600),
]


async def test_a_broker_in_a_container_takes_the_topology_and_carries_a_message() -> None:
    server = await asyncio.to_thread(container_rabbit)
    try:
        url = await asyncio.to_thread(server.fresh_vhost_url)
        await apply_rabbit(url, build_topology(1, [AgentQueues("a-1", "red", frozenset())]))
        bus = await connect_rabbit(BusSettings(amqp_url=url))
        try:
            async with bus.subscribe(gate_queue(0)) as inputs:
                await bus.publish(Publication(INGRESS, "0", Message(b"{}", message_id="m-1", type="IDEA")))
                (delivery,) = await asyncio.wait_for(inputs.receive(), 60)
                await inputs.ack(delivery)
        finally:
            await bus.close()
        assert (delivery.message.message_id, delivery.message.body) == ("m-1", b"{}")
    finally:
        await asyncio.to_thread(server.close)


async def test_a_database_in_a_container_takes_every_migration() -> None:
    server = await asyncio.to_thread(container_postgres)
    try:
        url = server.url_of("postgres")
        await migrate(url)
        connection = await asyncpg.connect(url)
        found = await connection.fetchval(
            "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'apc_log'"
        )
        await connection.close()
        assert found > 10
    finally:
        await server.close()

"""How many connections and channels an agent may hold at the broker."""

import asyncio
from contextlib import AsyncExitStack

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError
from tests.integration.privilege.conftest import GuardedBroker

from apc_bus.rabbit.definitions import user_limits
from apc_bus.rabbit.management import Management

pytestmark = pytest.mark.broker
USER = "agent.alpha"


async def connections_until_refused(url: str, most: int) -> int:
    async with AsyncExitStack() as stack:
        for count in range(most):
            try:
                connection = await aio_pika.connect(url)
            except AMQPError:
                return count
            stack.push_async_callback(connection.close)
    return most


async def test_an_agent_holds_no_more_connections_than_its_limit(guarded_broker: GuardedBroker) -> None:
    most = user_limits(guarded_broker.topology)[USER]["max-connections"]
    assert await connections_until_refused(guarded_broker.url(USER), most + 1) == most
    guarded_broker.node.ctl("clear_user_limits", USER, "all")
    try:
        assert await connections_until_refused(guarded_broker.url(USER), most + 1) == most + 1, "it works without"
    finally:
        limits = user_limits(guarded_broker.topology)[USER]
        await Management(guarded_broker.management_url()).set_limits(USER, limits)
    assert "128" in guarded_broker.node.ctl("list_user_limits", "--user", USER)


async def test_an_agent_holds_no_more_channels_than_its_limit(guarded_broker: GuardedBroker) -> None:
    most = user_limits(guarded_broker.topology)[USER]["max-channels"]
    connection = await aio_pika.connect(guarded_broker.url(USER))
    opened = 0
    try:
        async with asyncio.timeout(60):
            for _ in range(most + 1):
                await connection.channel()
                opened += 1
    except AMQPError:
        pass
    finally:
        await connection.close()
    assert opened == most


def test_users_of_services_have_none(guarded_broker: GuardedBroker) -> None:
    assert set(user_limits(guarded_broker.topology)) == {"agent.alpha", "agent.beta", "operator", "web", "door"}

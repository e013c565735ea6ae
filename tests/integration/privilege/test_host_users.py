"""An agent moves to a host in a system of least privilege: it gets another broker user, and the old one goes."""

import asyncio
from contextlib import suppress
from urllib.parse import quote
from uuid import UUID

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage
from tests.integration.privilege.broker_probes import may_open
from tests.integration.privilege.conftest import GuardedBroker
from tests.integration.privilege.system import CAST, System
from tests.integration.privilege.test_whole_system import system
from tests.support.traffic import make_idea, make_packet, make_start

from apc_bus.rabbit.management import Management
from apc_bus.topology import host_key, host_queue
from apc_contracts.payloads.session_signals import SwarmSpec

__all__ = ["system"]

USER, HOST = "host.h9", "h9"


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.timeout(300)
async def test_a_host_gets_its_user_and_the_old_one_goes(system: System, guarded_broker: GuardedBroker) -> None:
    management, former = Management(guarded_broker.management_url()), system.agent_url("gamma")
    try:
        moved = await system.run("agent", "move", "gamma", "--host", HOST)
        assert moved.returncode == 0, moved.stderr
        assert f"made broker user {USER}" in moved.stderr
        assert "broker user agent.gamma is deleted, its connections are closed" in moved.stderr
        assert not await may_open(former)
        held = (await management.permissions(system.vhost))[USER]
        assert held[0] == "^$" and held[1] == r"^(apc\.ingress|apc\.receipts)$"
        assert held[2] == r"^(apc\.substrate\.stream|apc\.host\.h9\.urgent|apc\.host\.h9\.normal)$"
        idea = await a_packet_comes_to_the_host(system)
        assert idea is not None
        told = await system.run("doctor", "--json")
        assert f"{USER} has other rights" not in told.stdout + told.stderr
        revoked = await system.run("agent", "revoke", "gamma")
        assert revoked.returncode == 0, revoked.stderr
        assert f"broker user {USER} is deleted" in revoked.stderr, "it was the last agent there"
    finally:
        await management.delete_user(USER)


async def a_packet_comes_to_the_host(system: System) -> UUID:
    """Send an IDEA to the agent and take it as the host."""
    swarms = (SwarmSpec(swarm_id="red", agents=("gamma",)), SwarmSpec(swarm_id="blue", agents=("delta",)))
    opening = make_start(cast=CAST, swarms=swarms, members=("librarian",))
    idea = make_packet("librarian", make_idea(), ("gamma",), cast=CAST, parent=opening)
    url = system.broker.node.url(system.vhost, USER, quote(system.passwords[USER], safe=""))
    came: asyncio.Future[AbstractIncomingMessage] = asyncio.get_running_loop().create_future()

    async def take(message: AbstractIncomingMessage) -> None:
        with suppress(asyncio.InvalidStateError):
            came.set_result(message)

    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.get_queue(host_queue(HOST, urgent=False), ensure=False)
        await queue.consume(take)
        async with system.playing("librarian") as agents:
            await agents.publish(opening, idea)
        message = await asyncio.wait_for(came, 60)
        assert (message.message_id, message.user_id) == (str(idea.packet_id), "orchestrator")
        assert message.routing_key == host_key(HOST, "gamma", urgent=False)
        await message.ack()
    return idea.packet_id

"""A broker node that freezes: gates, standbys, log writers and workers outlive it, and serve again when it goes on."""

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from pydantic import SecretStr
from tests.integration.conftest import House
from tests.support.servers import Proxy
from tests.support.traffic import make_idea, make_packet, until

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.rabbit import connections
from apc_bus.topology import agent_queue
from apc_contracts import IdeaPayload, Packet
from apc_contracts.vocabulary import PacketType

HEARTBEAT = timedelta(seconds=1)


@pytest.fixture
def shards() -> int:
    return 2


async def test_what_a_frozen_node_cuts_off_serves_again(
    house: House, amqp_vhost_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aiormq gives the connections up and cancels what waits on them, here after less than two heartbeats."""
    monkeypatch.setattr(connections._Connection, "HEARTBEAT_GRACE_MULTIPLIER", 0.75)
    async with Proxy.open(amqp_vhost_url) as proxy, AsyncExitStack() as resources:
        near, far = (
            house.settings,
            {"heartbeat": HEARTBEAT, "connect_timeout": HEARTBEAT, "connect_patience": HEARTBEAT},
        )
        house.settings = near.model_copy(update=far | {"amqp_url": SecretStr(proxy.url)})
        # The first holds the shards, the second stands by; nothing else is between the broker and the agents.
        holder, held = await resources.enter_async_context(house.gate(heartbeat=HEARTBEAT))
        await resources.enter_async_context(house.persister())
        await until(lambda: all(state.is_active for state in holder.shards))
        standby, standing = await resources.enter_async_context(house.gate(heartbeat=HEARTBEAT))
        bus = await house.connect("worker")
        resources.push_async_callback(bus.close)
        house.settings = near
        await house.open_session()

        agent, stop = Agent("sentinel", role="sentinel", swarm="red"), asyncio.Event()
        agent.on(PacketType.IDEA)(_ignore)
        worker = Worker(agent, bus, settings=WorkerSettings(shards=2))
        working = asyncio.create_task(worker.run(stop))
        await until(worker.ready.is_set)
        buses = (held.bus, standing.bus, bus)
        links = [bus._consume_link._link for bus in buses]
        proxy.freeze()
        await until(lambda: not any(link is not None and link.is_alive for link in links))
        proxy.thaw()

        await until(
            lambda: {state.shard for gate in (holder, standby) for state in gate.shards if state.is_active} == {0, 1}
        )
        await until(lambda: not any(bus.problems for bus in buses))
        sent = make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening)
        await house.agents.publish(sent)
        await until(house.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
        assert not any(task.done() for task in (held.task, standing.task, working))
        assert (await house.agents.bus.depth(agent_queue("sentinel", urgent=False))).messages == 0
        stop.set()
        await working


async def _ignore(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """Handle a packet."""

"""The broker connection of a one-shot command: made within seconds, or a clear error."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from urllib.parse import unquote, urlsplit

from apc_bus.port import Bus
from apc_bus.settings import BusSettings, ConsoleSettings, DatabaseSettings
from apc_bus.topology import AgentQueues, Topology
from apc_client.registration import inboxes_of, topology_of
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable, ServiceAway
from apc_log.placement import objection_to, read_open_sessions
from apc_log.registry import registered_agents

CONNECT_PATIENCE = timedelta(seconds=3)
PATIENCE_SECONDS = 8.0
"""Seconds in total that a command waits for the broker."""


def broker_user(settings: BusSettings) -> str:
    """Return the user of APC_AMQP_URL. Raises InputUnusable when it is not set."""
    if not settings.amqp_nodes:
        raise InputUnusable("set APC_AMQP_URL: `apc up` without a broker registers its agents itself")
    return unquote(urlsplit(settings.amqp_nodes[0]).username or "guest")


@asynccontextmanager
async def open_bus(settings: BusSettings) -> AsyncIterator[Bus]:
    """Yield the bus of APC_AMQP_URL, connected. Raises InputUnusable, BusUnavailable, ShardsDiffer."""
    from apc_bus.rabbit import connect_rabbit

    broker_user(settings)
    quick = settings.model_copy(update={"connect_patience": CONNECT_PATIENCE, "connect_timeout": CONNECT_PATIENCE})
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            bus = await connect_rabbit(quick, purpose="apc", shards=settings.shards)
    except TimeoutError as error:
        raise ServiceAway("the broker does not answer: start RabbitMQ or check APC_AMQP_URL") from error
    try:
        yield bus
    finally:
        await bus.close()


async def planned_topology(expected: Sequence[AgentQueues] = ()) -> Topology:
    """Return the topology of APC_SHARDS, with an inbox for each registered agent when APC_DATABASE_URL is set.

    Args:
        expected: agents that get an inbox even if they are not registered yet.
    """
    settings = BusSettings()
    agents = {agent.agent_id: agent for agent in expected}
    if DatabaseSettings().database_url is not None:
        async with open_log() as pool:
            agents |= {one.agent_id: one for one in inboxes_of(await registered_agents(pool))}
    return topology_of(settings, list(agents.values()))


def topology_url(settings: BusSettings) -> str:
    """Return the AMQP URL of the deploy-time user, who may declare; needs APC_AMQP_URL or APC_TOPOLOGY_URL."""
    given = ConsoleSettings().topology_url
    return settings.with_certificates(given.get_secret_value()) if given else settings.amqp_nodes[0]


async def apply(topology: Topology) -> None:
    """Declare a topology as the user of APC_TOPOLOGY_URL.

    Another number of shards only if every open session stays in its shard, or if the number before serves them worse.

    Raises TopologyConflict, BusUnavailable.
    """
    from apc_bus.rabbit import apply_rabbit
    from apc_bus.rabbit.connections import Timing

    settings = BusSettings()
    broker_user(settings)
    seconds = CONNECT_PATIENCE.total_seconds()
    timing = Timing(connect=seconds, patience=seconds)
    objection = partial(_objection, topology.shards)
    await apply_rabbit(topology_url(settings), topology, objection=objection, timing=timing)


async def _objection(wanted: int, before: int) -> str | None:
    """Return why the number of shards may not be this one, by the log; without a log the first number is free."""
    if DatabaseSettings().database_url is None:
        missing = "only the log knows whether sessions are open, and which inboxes there are: set APC_DATABASE_URL"
        return missing if before else None
    async with open_log() as pool:
        return objection_to(await read_open_sessions(pool), before, wanted)

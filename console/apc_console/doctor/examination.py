"""All checks in order; one that cannot be made becomes a finding, and does not keep the others from being made."""

from contextlib import AsyncExitStack

import asyncpg

from apc_bus.database import open_pool
from apc_bus.errors import BusUnavailable, DatabaseUnavailable, TopologyInvalid
from apc_bus.rabbit import Inspection
from apc_bus.settings import BusSettings, DatabaseSettings, OrchestratorSettings
from apc_bus.topology import Topology
from apc_console.broker import topology_url
from apc_console.database import PATIENCE, database_url, first_line
from apc_console.doctor.agents import look_at_agents
from apc_console.doctor.broker import (
    inspect_broker,
    judge_gates,
    judge_topology,
    look_at_message_size,
    look_at_nodes,
)
from apc_console.doctor.checkpoints import look_at_checkpoints
from apc_console.doctor.database import look_at_database
from apc_console.doctor.dead_letters import judge_dead_queue, look_at_dead_letters
from apc_console.doctor.effects import look_at_effects
from apc_console.doctor.finding import Finding, Status, ok, wrong
from apc_console.doctor.log_lag import look_at_lag
from apc_console.doctor.permissions import look_at_permissions
from apc_console.doctor.users import look_at_users
from apc_console.errors import InputUnusable
from apc_console.registration import queues_of, registered_agents
from apc_console.topology import topology_of


async def examine() -> list[Finding]:
    """Look at the broker and the database of the settings. Raises nothing that the services would meet."""
    settings, database = BusSettings(), DatabaseSettings()
    async with AsyncExitStack() as stack:
        findings, pool = await _database(stack, settings, database)
        if not settings.amqp_nodes:
            return [ok("broker", "in process: no APC_AMQP_URL"), *findings]
        return [*await _broker(settings, pool), *findings]


async def _database(
    stack: AsyncExitStack, settings: BusSettings, database: DatabaseSettings
) -> tuple[list[Finding], asyncpg.Pool | None]:
    """The findings, and a pool on a database that holds a log of this release."""
    try:
        url = await stack.enter_async_context(database_url(settings, database))
        pool = await open_pool(url, max_size=2, wait=PATIENCE)
    except (InputUnusable, DatabaseUnavailable) as error:
        return [wrong("database", str(error), "start it, or correct APC_DATABASE_URL")], None
    stack.push_async_callback(pool.close)
    try:
        async with pool.acquire() as connection:
            findings = await look_at_database(connection, may_be_undurable=database.allow_undurable_database)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        return [wrong("database", f"it failed: {first_line(error)}", "look into the database's own log")], None
    if any(finding.status is not Status.OK for finding in findings if finding.check == "schema"):
        return findings, None
    findings += [*await look_at_checkpoints(pool), *await look_at_dead_letters(pool), *await look_at_effects(pool)]
    return findings, pool


async def _broker(settings: BusSettings, pool: asyncpg.Pool | None) -> list[Finding]:
    findings = await look_at_nodes(settings.amqp_nodes)
    if not any(finding.status is Status.OK for finding in findings):
        return findings
    agents = [] if pool is None else [queues_of(agent) for agent in await registered_agents(pool)]
    topology = topology_of(settings, agents)
    try:
        found: Inspection = await inspect_broker(topology_url(settings), topology)
    except BusUnavailable as error:
        return [*findings, wrong("topology", str(error), "correct APC_TOPOLOGY_URL")]
    shards = range(settings.shards)
    findings += judge_topology(found)
    findings += await look_at_message_size(topology_url(settings), OrchestratorSettings().gate_prefetch)
    findings += await look_at_users(settings, topology)
    findings += judge_gates(found.depths, shards)
    if pool is not None:
        findings += await look_at_lag(pool, found.depths, shards)
        findings += await look_at_agents(pool, found.depths)
    findings += judge_dead_queue(found.depths)
    return [*findings, *await _permissions(settings, topology)]


async def _permissions(settings: BusSettings, topology: Topology) -> list[Finding]:
    try:
        return await look_at_permissions(settings, topology)
    except TopologyInvalid as error:
        return [wrong("permissions", str(error), "register the agent with another --broker-user")]
    except BusUnavailable as error:
        return [wrong("permissions", str(error), "correct APC_AMQP_URL")]

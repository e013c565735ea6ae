"""`apc doctor`: run all checks in order; one that fails to run becomes a finding and does not stop the others."""

from contextlib import AsyncExitStack, suppress
from dataclasses import replace

import asyncpg
import typer

from apc_bus.database import DATABASE_AWAY, open_pool
from apc_bus.errors import DatabaseUnavailable
from apc_bus.settings import BusSettings, DatabaseSettings, OrchestratorSettings
from apc_bus.topology import Topology
from apc_cli.connections import PATIENCE, database_url, topology_url
from apc_cli.doctor.agents import (
    judge_dead_queue,
    look_at_agents,
    look_at_dead_letters,
    look_at_effects,
    look_at_inputs_set_aside,
)
from apc_cli.doctor.broker import (
    inspect_broker,
    judge_gates,
    judge_topology,
    look_at_message_size,
    look_at_nodes,
    look_at_other_node,
    look_at_permissions,
    look_at_users,
)
from apc_cli.doctor.cluster import look_at_cluster
from apc_cli.doctor.finding import Finding, Status, attempt, look, ok
from apc_cli.doctor.log import (
    look_at_checkpoints,
    look_at_database,
    look_at_databases,
    look_at_evidence,
    look_at_lag,
    look_at_number,
    look_at_places,
    look_at_projections,
    look_at_recorded_time,
    look_at_segments,
    look_at_unstored,
)
from apc_cli.output.output import AsJson, print_rows
from apc_client.registration import inboxes_of, topology_of
from apc_log.errors import NOT_JOINED, DatabasesUnjoinable
from apc_log.heads import holds_log
from apc_log.placement import read_databases
from apc_log.registry import registered_agents

PERMISSIONS_FIX = "correct APC_AMQP_URL, or register the agent that it names with another --broker-user"


async def examine() -> list[Finding]:
    """Check the broker and the database of the settings.

    Raises pydantic's ValidationError only for invalid settings.
    """
    settings, database = BusSettings(), DatabaseSettings()
    async with AsyncExitStack() as stack:
        findings, pool = await _database(stack, settings, database)
        if not settings.amqp_nodes:
            return [ok("broker", "in process: no APC_AMQP_URL"), *findings]
        whole = pool
        if pool is not None and database.other_urls:
            whole = await attempt("log", _open_pool(stack, settings, database, is_whole=True), findings)
        return [*await _broker(settings, pool, whole), *findings]


async def _database(
    stack: AsyncExitStack, settings: BusSettings, database: DatabaseSettings
) -> tuple[list[Finding], asyncpg.Pool | None]:
    """Return the findings, and a pool on a database that holds a log of this release."""
    findings: list[Finding] = []
    opening = _open_pool(stack, settings, database)
    pool = await attempt("database", opening, findings, "start it, or correct APC_DATABASE_URL")
    if pool is None:
        return findings, None
    findings += await look("database", _look_at_database(pool, database))
    if any(finding.status is not Status.OK for finding in findings if finding.check in ("schema", "database")):
        return findings, None
    findings += await look("shards", look_at_places(pool, settings.shards))
    findings += await look("databases", look_at_databases(pool, database, settings.shards))
    findings += [*await _look_at_log(pool), *await look("effects", look_at_effects(pool))]
    for name, url in database.other_urls.items():
        with suppress(DatabaseUnavailable, *DATABASE_AWAY):  # said by look_at_databases
            other = await open_pool(url, max_size=2, wait=PATIENCE)
            stack.push_async_callback(other.close)
            found = [one for one in await _look_at_log(other) if one.status is not Status.OK]
            findings += [replace(one, finding=f"{name}: {one.finding}") for one in found]
    return findings, pool


async def _look_at_log(pool: asyncpg.Pool) -> list[Finding]:
    """Check what is in one database of the log."""
    findings: list[Finding] = []
    for check, looking in (
        ("recorded time", look_at_recorded_time),
        ("log end", look_at_evidence),
        ("unstored entries", look_at_unstored),
        ("search", look_at_projections),
        ("segments", look_at_segments),
        ("checkpoints", look_at_checkpoints),
        ("dead letters", look_at_dead_letters),
        ("inputs set aside", look_at_inputs_set_aside),
    ):
        findings += await look(check, looking(pool))
    return findings


async def _open_pool(
    stack: AsyncExitStack, settings: BusSettings, database: DatabaseSettings, *, is_whole: bool = False
) -> asyncpg.Pool:
    """Return a pool on the home database, or on all databases of the log as one."""
    url = await stack.enter_async_context(database_url(settings, database))
    parts = (await read_databases(url, database.other_urls)).parts if is_whole else None
    pool = await open_pool(url, max_size=2, wait=PATIENCE, parts=parts)
    stack.push_async_callback(pool.close)
    if is_whole and not await holds_log(pool):
        raise DatabasesUnjoinable(NOT_JOINED)
    return pool


async def _look_at_database(pool: asyncpg.Pool, database: DatabaseSettings) -> list[Finding]:
    async with pool.acquire() as connection:
        return await look_at_database(connection, may_be_undurable=database.allow_undurable_database)


async def _broker(settings: BusSettings, pool: asyncpg.Pool | None, whole: asyncpg.Pool | None) -> list[Finding]:
    """Check the broker; `pool` is of the home database, `whole` of all databases of the log."""
    findings = await look("broker", look_at_nodes(settings.amqp_nodes))
    answering = [url for url, one in zip(settings.amqp_nodes, findings, strict=False) if one.status is Status.OK]
    if not answering:
        return findings
    topology = await attempt("topology", _plan(settings, pool), findings)
    if topology is None:
        return findings
    inspecting = inspect_broker(topology_url(settings), topology)
    inspection = await attempt("topology", inspecting, findings, "correct APC_TOPOLOGY_URL")
    if inspection is None:
        return findings
    findings += judge_topology(inspection)
    for url in answering[1:]:
        findings += await look("topology", look_at_other_node(url, settings.shards))
    findings += await look("shards", look_at_number(topology_url(settings), settings.shards))
    prefetch = OrchestratorSettings().gate_prefetch
    findings += await look("message size", look_at_message_size(topology_url(settings), prefetch))
    findings += await look("users", look_at_users(settings, topology))
    findings += await look("cluster", look_at_cluster(settings, topology), "correct APC_MANAGEMENT_URL")
    findings += judge_gates(inspection.depths, range(settings.shards))
    if whole is not None:
        findings += await look("log", look_at_lag(whole, inspection.depths, range(settings.shards)))
    if pool is not None:
        findings += await look("agents", look_at_agents(pool, inspection.depths))
    findings += judge_dead_queue(inspection.depths)
    return [*findings, *await look("permissions", look_at_permissions(settings, topology), PERMISSIONS_FIX)]


async def _plan(settings: BusSettings, pool: asyncpg.Pool | None) -> Topology:
    """Return the topology that the broker should hold. Raises ContractInvalid, TopologyInvalid, and database errors."""
    agents = [] if pool is None else inboxes_of(await registered_agents(pool))
    return topology_of(settings, agents)


async def doctor(as_json: AsJson = False) -> None:
    """Check broker, topology, database, guard, clocks and log; exit 1 when something is wrong."""
    findings = await examine()
    print_rows([finding.row() for finding in findings], title="Doctor", as_json=as_json, empty="nothing to look at")
    if any(finding.status is Status.WRONG for finding in findings):
        raise typer.Exit(1)

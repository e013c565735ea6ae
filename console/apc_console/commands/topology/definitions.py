"""`apc topology export`: the planned topology as RabbitMQ definitions, with remarks for the operator."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apc_agents.team import load_agent
from apc_bus.rabbit import export_definitions
from apc_bus.rabbit.definitions import permissions
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_bus.topology import Topology
from apc_console.commands.agent.broker_users import make_users
from apc_console.connections.broker import apply, planned_topology
from apc_console.connections.database import open_log
from apc_console.connections.passwords import complete_passwords, given_passwords
from apc_log.placement import check_places, read_open_sessions


async def exported(vhost: str, modules: Sequence[str], file: Path | None) -> tuple[dict[str, Any], list[str]]:
    """Return the definitions, and remarks for the operator.

    Args:
        modules: `module:agent` of agents that are not registered yet.
        file: passwords, completed and hashed; None = those of the environment alone.

    Raises:
        InputUnusable: passwords that cannot be used. ModuleUnusable, AgentNotFound. TopologyInvalid.
        ShardsDiffer: sessions are open that another number of shards has placed: nobody asks when they are imported.
    """
    await _check_places()
    topology = await planned_topology([load_agent(module).queues() for module in modules])
    users = list(permissions(topology))
    made: list[str] = []
    passwords = given_passwords()
    if file is not None:
        passwords, made = complete_passwords(users, file)
    remarks = [f"made passwords for {', '.join(made)}: they are in {file}"] if made else []
    locked = [user for user in users if user not in passwords]
    if locked:
        remarks.append(f"without a password, so they cannot log in: {', '.join(locked)}")
    definitions = export_definitions(topology, vhost=vhost, passwords=passwords)
    return definitions, [*remarks, *shared_users(topology)]


async def apply_planned() -> tuple[Topology, list[str]]:
    """Declare the planned topology, and make its users where they can be made; with remarks for the operator.

    Raises:
        TopologyConflict, BusUnavailable, InputUnusable, TopologyInvalid.
    """
    topology = await planned_topology()
    await apply(topology)
    return topology, await make_users(BusSettings(), topology)


async def _check_places() -> None:
    if DatabaseSettings().database_url is not None:
        async with open_log() as pool:
            check_places(await read_open_sessions(pool), BusSettings().shards)


def shared_users(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each broker user of several agents."""
    sharing: dict[str, list[str]] = {}
    for agent in topology.agents:
        sharing.setdefault(agent.user, []).append(agent.agent_id)
    for user, agents in sharing.items():
        if len(agents) > 1:
            yield f"agents {', '.join(agents)} share the broker user {user}: each can speak as the others"

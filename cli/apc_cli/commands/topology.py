"""`apc topology`: show, declare or export exchanges, queues and bindings, with remarks for the operator."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from apc_agents.team import load_agent
from apc_bus.rabbit import export_definitions
from apc_bus.rabbit.definitions import permissions
from apc_bus.settings import BusSettings, DatabaseSettings
from apc_bus.topology import Topology
from apc_cli.commands.agent_logins import complete_passwords, given_passwords, make_users
from apc_cli.commands.group import Commands
from apc_cli.connections import apply as apply_topology
from apc_cli.connections import open_log, planned_topology
from apc_cli.output.files import write_output
from apc_cli.output.output import AsJson, print_rows, tell, to_json
from apc_cli.output.terminal import echo
from apc_contracts.text import numbered, some_of
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


async def _check_places() -> None:
    if DatabaseSettings().database_url is not None:
        async with open_log() as pool:
            check_places(await read_open_sessions(pool), BusSettings().shards)


def shared_users(topology: Topology) -> Iterator[str]:
    """Yield a sentence for each broker user of several agents, but for those of hosts, whose purpose that is."""
    sharing: dict[str, list[str]] = {}
    for agent in topology.agents:
        if agent.user != f"host.{agent.host}":
            sharing.setdefault(agent.user, []).append(agent.agent_id)
    for user, agents in sharing.items():
        if len(agents) > 1:
            yield f"agents {some_of(agents)} share the broker user {user}: each can speak as the others"


app = Commands(help="Show, declare or export the broker's topology.")


@app.command()
async def show(as_json: AsJson = False) -> None:
    """Print the topology: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set."""
    keys = ("exchange", "kind", "routing_key", "queue")
    rows = [dict(zip(keys, row, strict=True)) for row in (await planned_topology()).rows()]
    print_rows(rows, title="Topology", as_json=as_json, empty="nothing", least=("kind",))


@app.command()
async def apply() -> None:
    """Declare the topology on the broker, as the deploy-time user of APC_TOPOLOGY_URL (default APC_AMQP_URL).

    With APC_MANAGEMENT_URL the users of the services and of the registered agents are created too, with the least
    rights.
    """
    topology = await planned_topology()
    await apply_topology(topology)
    tell(await make_users(BusSettings(), topology))
    echo(
        f"declared {numbered(len(topology.exchanges), 'exchange')}, {numbered(len(topology.queues), 'queue')}, "
        f"{numbered(len(topology.bindings), 'binding')} for {numbered(topology.shards, 'shard')} "
        f"and {numbered(len(topology.agents), 'agent')}"
    )


@app.command()
async def export(
    out: Annotated[Path, typer.Option(help="The file; - is standard output.")] = Path("-"),
    vhost: Annotated[str, typer.Option(help="The virtual host of everything in the file.")] = "/",
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:AGENT", help="An agent that is not registered yet; its user is agent.<id>."),
    ] = None,
    passwords: Annotated[
        Path | None,
        typer.Option(help="JSON file (mode 0600), user -> password: hashed; missing ones are generated and added."),
    ] = None,
) -> None:
    """Write RabbitMQ definitions (`load_definitions`): a user with the least rights for each service and agent.

    Without --passwords only the users of APC_BROKER_PASSWORDS get one; the others cannot log in until `rabbitmqctl
    change_password`.
    """
    definitions, remarks = await exported(vhost, agent or (), passwords)
    write_output(out, to_json(definitions) + b"\n")
    tell(remarks)

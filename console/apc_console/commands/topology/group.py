"""`apc topology`: show, declare or export exchanges, queues and bindings."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson, print_rows, tell
from apc_console.output.terminal import echo
from apc_contracts.text import numbered

app = typer.Typer(help="Show, declare or export the broker's topology.", no_args_is_help=True)


@app.command()
def show(as_json: AsJson = False) -> None:
    """Print the topology: APC_SHARDS shards, and the registered agents when APC_DATABASE_URL is set."""
    from apc_console.connections.broker import planned_topology
    from apc_console.system.running import run_quietly

    keys = ("exchange", "kind", "routing_key", "queue")
    rows = [dict(zip(keys, row, strict=True)) for row in run_quietly(planned_topology()).rows()]
    print_rows(rows, title="Topology", as_json=as_json, empty="nothing", least=("kind",))


@app.command()
def apply() -> None:
    """Declare the topology on the broker, as the deploy-time user of APC_TOPOLOGY_URL (default APC_AMQP_URL).

    With APC_MANAGEMENT_URL the users of the services and of the registered agents are created too, with the least
    rights.
    """
    from apc_console.commands.topology.definitions import apply_planned
    from apc_console.system.running import run_quietly

    topology, remarks = run_quietly(apply_planned())
    tell(remarks)
    echo(
        f"declared {numbered(len(topology.exchanges), 'exchange')}, {numbered(len(topology.queues), 'queue')}, "
        f"{numbered(len(topology.bindings), 'binding')} for {numbered(topology.shards, 'shard')} "
        f"and {numbered(len(topology.agents), 'agent')}"
    )


@app.command()
def export(
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
    from apc_console.commands.topology.definitions import exported
    from apc_console.output.files import write_output
    from apc_console.output.output import to_json
    from apc_console.system.running import run_quietly

    definitions, remarks = run_quietly(exported(vhost, agent or (), passwords))
    write_output(out, to_json(definitions) + b"\n")
    tell(remarks)

"""`apc agent`: an operator adds and revokes agents; the log records it."""

from typing import Annotated

import typer

from apc_console.commands.packet.group import ContractFile
from apc_console.output.output import AsJson, print_rows, tell
from apc_console.output.terminal import echo

app = typer.Typer(help="Add, revoke, list and show agents.", no_args_is_help=True)

AgentId = Annotated[str, typer.Argument(metavar="ID", help="The agent's id, unique in the deployment.")]


NewAgents = Annotated[
    list[str],
    typer.Argument(
        metavar="ID | MODULE:AGENT…", help="One id with its options, or agents and teams as `apc up` takes them."
    ),
]


@app.command()
def add(
    agents: NewAgents,
    role: Annotated[str | None, typer.Option(help="Its role, which its packets must carry.")] = None,
    swarm: Annotated[str | None, typer.Option(help="Its swarm, which its packets must carry.")] = None,
    rights: Annotated[str, typer.Option(help="operate, decide, validate, veto, schedule; separated by commas.")] = "",
    handles: Annotated[
        str, typer.Option(help="Packet types, separated by commas; control types are always delivered.")
    ] = "",
    speaks: Annotated[
        str, typer.Option(help="Protocol versions that it reads, separated by commas; sessions of tasks need apc/1.1.")
    ] = "",
    key: Annotated[list[str] | None, typer.Option(metavar="KEY_ID=BASE64", help="A public Ed25519 key.")] = None,
    broker_user: Annotated[
        str | None,
        typer.Option(help="Its user at the broker; default agent.ID with APC_MANAGEMENT_URL, else our own."),
    ] = None,
    person: Annotated[bool, typer.Option("--person", help="Register a person, whom handlers can ask.")] = False,
    via: Annotated[list[str] | None, typer.Option(help="A broker user that speaks for the person; repeatable.")] = None,
) -> None:
    """Declare an agent's queues, make its broker user and register it; repeat it to change.

    MODULE:AGENT takes role, swarm, rights and handled types from the agent's code, and registers the schemas of its
    models; MODULE:TEAM does so for every agent of a team. An ID takes all this from the options.
    Returns when the registry holds it. With APC_MANAGEMENT_URL the user is created with the least rights; its password
    comes from APC_BROKER_PASSWORDS, or is generated and kept in APC_BROKER_PASSWORDS_FILE.

    A client (`client-…`, --swarm clients, no --handles) starts sessions and has no queues. A person (--person --role
    --via) has no queues and no own user; with --rights operate it may act on sessions and dead letters.
    """
    from apc_console.commands.agent.agents import AgentForm, add_agent, add_agents_of_code, add_person
    from apc_console.system.running import run_quietly

    if person:
        if len(agents) != 1 or not role or any((swarm, handles, speaks, key, broker_user)):
            raise typer.BadParameter("give one ID with --person, --role, --via, and --rights operate for an operator")
        tell(run_quietly(add_person(agents[0], role, via or (), rights)))
        echo(f"person {agents[0]} is registered")
        return
    if via:
        raise typer.BadParameter("--via goes with --person")
    if not any((role, swarm, rights, handles, speaks, key, broker_user)) and all(":" in agent for agent in agents):
        added = run_quietly(add_agents_of_code(agents))
    elif len(agents) == 1 and role and swarm:
        form = AgentForm(agents[0], role, swarm, rights, handles, tuple(key or ()), broker_user, speaks or "apc/1.0")
        added = run_quietly(add_agent(form))
    else:
        raise typer.BadParameter("give one ID with --role and --swarm, or MODULE:AGENT… without options")
    tell(added.remarks)
    for sentence in added.sentences:
        echo(sentence)


@app.command()
def revoke(agent_id: AgentId) -> None:
    """Revoke an agent's registration and delete its broker user: nothing of it is accepted from now on.

    Its past stays in the log. With APC_MANAGEMENT_URL its broker user is deleted, which closes its connections. Its
    keys are no longer valid. Repeating the command does no harm.
    """
    from apc_console.commands.agent.agents import revoke_agent
    from apc_console.system.running import run_quietly

    tell(run_quietly(revoke_agent(agent_id)))
    echo(f"agent {agent_id} is revoked")


@app.command("list")
def list_agents(as_json: AsJson = False) -> None:
    """List agents: rights, whether alive, last seen, open deliveries, and messages waiting in their queues."""
    from apc_console.commands.agent.agents_view import agent_rows
    from apc_console.system.running import run_quietly

    print_rows(
        run_quietly(agent_rows()),
        title="Agents",
        as_json=as_json,
        empty="no agent is registered",
        least=("keys", "broker_user", "rights", "handles"),
    )


@app.command()
def show(
    agent_id: AgentId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Show at most this many invocations, newest first.")] = 20,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Show one agent and the state of its latest handler invocations (`intra_agent_coordination`)."""
    from apc_console.commands.agent.agent_view import print_agent
    from apc_console.system.running import run_quietly

    run_quietly(print_agent(agent_id, contract_file, limit=limit, as_json=as_json))


@app.command()
def schedules(
    agent_id: Annotated[str | None, typer.Argument(metavar="ID", help="Only those of this agent.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the schedules of agents: cron line, time zone, up to when they have fired, and when they fire next."""
    from apc_console.commands.agent.schedules_view import schedule_rows
    from apc_console.system.running import run_quietly

    rows = run_quietly(schedule_rows(agent_id))
    print_rows(rows, title="Schedules", as_json=as_json, empty="no agent has a schedule")

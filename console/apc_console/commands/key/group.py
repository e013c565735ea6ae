"""`apc key`: the keys with which agents sign."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.terminal import echo

app = typer.Typer(help="Make, show and register the keys with which agents sign.", no_args_is_help=True)

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
File = Annotated[
    Path | None,
    typer.Option("--file", help="The private key; default APC_AGENT_KEY_FILE, else <data dir>/keys/<agent>.pem."),
]


@app.command()
def new(agent_id: AgentId, file: File = None) -> None:
    """Make a private key (Ed25519, PEM, mode 0600) and print its public half; never overwrites a key."""
    from apc_console.commands.key.keys import new_key

    key, path = new_key(agent_id, file)
    echo(f"made {path}: keep it secret; `apc key register {agent_id}` makes it known", file=sys.stderr)
    echo(f"{key.key_id}={key.public_key}")


@app.command()
def show(agent_id: AgentId, file: File = None) -> None:
    """Print the public half as KEY_ID=BASE64, as `apc agent add --key` takes it."""
    from apc_console.commands.key.keys import present_key

    key = present_key(agent_id, file)
    echo(f"{key.key_id}={key.public_key}")


@app.command()
def register(
    agent_id: AgentId,
    file: File = None,
    only: Annotated[bool, typer.Option("--only", help="Remove the agent's other keys.")] = False,
) -> None:
    """Add the public key to the agent's registration; return when the registry holds it."""
    from apc_console.commands.key.keys import register_key
    from apc_console.system.running import run_quietly

    key = run_quietly(register_key(agent_id, file, is_only=only))
    echo(f"key {key.key_id} of agent {agent_id} is registered")

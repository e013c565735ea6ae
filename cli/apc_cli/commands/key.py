"""`apc key`: an agent's signing key: create it, show its public half, register it."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from apc_agents.keys import AGENT_ID, AgentKey, find_key, make_key, read_key
from apc_bus.settings import BusSettings, WorkerSettings
from apc_cli.commands.group import Commands
from apc_cli.connections import open_bus, open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo
from apc_contracts.contract_model import ID_PATTERN
from apc_log.registry import registered_agents


def default_file(agent_id: str) -> Path:
    """Return the path of an agent's key: APC_AGENT_KEY_FILE, else `<data_dir>/keys/<agent_id>.pem`.

    Raises:
        InputUnusable: the name is no agent id, so it must not become a path.
    """
    if not re.fullmatch(ID_PATTERN, agent_id):
        raise InputUnusable(f"ID {agent_id!r} is no agent id: 1 to 64 letters, digits, '.', '_', ':' or '-'")
    given = WorkerSettings().agent_key_file
    if given is not None:
        return Path(str(given).replace(AGENT_ID, agent_id))
    return BusSettings().data_dir / "keys" / f"{agent_id}.pem"


def new_key(agent_id: str, file: Path | None) -> tuple[AgentKey, Path]:
    """Create a key; return it and its path. Raises AgentKeyUnusable when one exists, InputUnusable for no agent id."""
    path = file or default_file(agent_id)
    return make_key(path), path


def present_key(agent_id: str, file: Path | None) -> AgentKey:
    """Return the key in a file, else the one with which a worker of this environment would sign.

    Raises AgentKeyUnusable.
    """
    if file is not None:
        return read_key(file)
    return find_key(WorkerSettings(), agent_id) or read_key(default_file(agent_id))


app = Commands(help="Make, show and register the keys with which agents sign.")

AgentId = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's id.")]
File = Annotated[
    Path | None,
    typer.Option("--file", help="The private key; default APC_AGENT_KEY_FILE, else <data dir>/keys/<agent>.pem."),
]


@app.command()
def new(agent_id: AgentId, file: File = None) -> None:
    """Make a private key (Ed25519, PEM, mode 0600) and print its public half; never overwrites a key."""
    key, path = new_key(agent_id, file)
    echo(f"made {path}: keep it secret; `apc key register {agent_id}` makes it known", file=sys.stderr)
    echo(f"{key.key_id}={key.public_key}")


@app.command()
def show(agent_id: AgentId, file: File = None) -> None:
    """Print the public half as KEY_ID=BASE64, as `apc agent add --key` takes it."""
    key = present_key(agent_id, file)
    echo(f"{key.key_id}={key.public_key}")


@app.command()
async def register(
    agent_id: AgentId,
    file: File = None,
    only: Annotated[bool, typer.Option("--only", help="Remove the agent's other keys.")] = False,
) -> None:
    """Add the public key to the agent's registration; return when the registry holds it."""
    from apc_client.registration import LOG_PATIENCE, addition, publish_changes, wait_until_recorded

    settings, key = BusSettings(), present_key(agent_id, file)
    async with open_log() as pool, open_bus(settings) as bus:
        known = {one.agent_id: one for one in await registered_agents(pool)}
        if agent_id not in known:
            raise InputUnusable(f"agent {agent_id} is not registered: `apc agent add` comes first")
        others = {} if only else known[agent_id].public_keys
        keys = {**others, key.key_id: key.public_key}
        change = addition(replace(known[agent_id], public_keys=keys))
        await publish_changes(bus, [change], settings.shards)
        await wait_until_recorded(pool, [change], settings.shards, LOG_PATIENCE)
    echo(f"key {key.key_id} of agent {agent_id} is registered")

"""`apc contract`: walk, draw and explain contracts; begin, check and register a contract file."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from apc_console.commands.packet.group import ContractFile
from apc_console.output.output import AsJson, print_rows
from apc_console.output.terminal import echo

app = typer.Typer(help="Walk, draw, explain, check and register contracts.", no_args_is_help=True)

MachineName = Annotated[
    str, typer.Argument(help="inter_agent_coordination, intra_agent_coordination, packet_lifecycle.")
]


@app.command()
def walk(
    machine: MachineName,
    events: Annotated[list[str], typer.Argument(metavar="EVENT…", help="The events, in order.")],
    facts: Annotated[str, typer.Option(metavar="JSON", help="The facts that the guards read: one object.")] = "{}",
    contract_file: ContractFile = None,
) -> None:
    """Print the states that a machine passes through, one per line; exit 2 at an illegal event or a false guard."""
    from apc_contracts.contract.contract import load_contract

    known = _facts(facts)
    walked = load_contract(contract_file).machine(machine)
    state = walked.initial
    echo(state)
    for event in events:
        state = walked.step(state, event, known)
        echo(state)


@app.command()
def diagram(machine: MachineName, contract_file: ContractFile = None) -> None:
    """Print a machine as a Mermaid state diagram."""
    from apc_contracts.contract.contract import load_contract

    echo(load_contract(contract_file).machine(machine).mermaid())


@app.command()
def check(file: Annotated[Path, typer.Argument(help="A contract file.")]) -> None:
    """Check a contract file: schema, states, edges, guards; exit 2 and name the place of the first gap."""
    from apc_contracts.contract.contract import load_contract

    echo(f"{file}: a usable contract, sha256 {load_contract(file).hash.hex()}")


@app.command()
def explain(name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A contract's name or its file.")]) -> None:
    """Say in words who may send what when, what is checked, what moves a session on, and what ends it.

    A name is one of the packaged contracts, of APC_CONTRACTS, or of those that are registered in the log.
    """
    from apc_console.commands.contract.explanation import explained, find_contract
    from apc_console.system.running import run_quietly

    for line in explained(run_quietly(find_contract(name))):
        echo(line)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The new contract's name; the file is NAME.json.")],
    base: Annotated[str, typer.Option("--from", metavar="CONTRACT", help="The contract to begin with.")] = "task",
) -> None:
    """Write NAME.json, a contract with a comment for each part that you may change; never over another file."""
    from apc_console.commands.contract.explanation import find_contract
    from apc_console.commands.contract.new_contract import write_contract
    from apc_console.system.running import run_quietly

    path = write_contract(name, run_quietly(find_contract(base)))
    echo(f"{path}: change it, then: apc contract check {path}")


@app.command()
def register(file: Annotated[Path, typer.Argument(help="A contract file; `-` is the standard input.")]) -> None:
    """Register a contract under the name in its file; returns when every shard has it. No gate has to restart.

    Another file of the same name is its next revision: sessions that are open keep theirs. After 10 s the command
    names the shards that have not confirmed and exits with 4; repeat it.
    """
    from apc_console.commands.contract.registered_contracts import register_file
    from apc_console.system.running import run_quietly

    found = run_quietly(register_file(file))
    name, digest = found.contract.name, found.contract.hash.hex()
    echo(f"contract {name} is registered, revision {found.revision}, sha256 {digest}")


@app.command("list")
def list_contracts(as_json: AsJson = False) -> None:
    """List the registered contracts, each with its newest revision."""
    from apc_console.commands.contract.registered_contracts import contract_rows
    from apc_console.system.running import run_quietly

    print_rows(run_quietly(contract_rows()), title="Contracts", as_json=as_json, empty="no contract is registered")


@app.command()
def show(name: Annotated[str, typer.Argument(help="The name of a registered contract.")]) -> None:
    """Print the newest file of a registered contract."""
    from apc_console.commands.contract.registered_contracts import contract_text
    from apc_console.system.running import run_quietly

    echo(run_quietly(contract_text(name)))


def _facts(text: str) -> dict[str, Any]:
    try:
        facts = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise typer.BadParameter(f"--facts is no JSON: {error}") from error
    if not isinstance(facts, dict):
        raise typer.BadParameter('--facts must be one JSON object, such as {"generation": 11}')
    return facts

"""`apc protocol`: effectiveness and blocks of protocols."""

from typing import Annotated

import typer

from apc_console.commands.packet.group import ContractFile
from apc_console.output.output import AsJson

app = typer.Typer(help="Effectiveness and decay of protocols.", no_args_is_help=True)


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Option(help="Only what was transferred in this run.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many protocols.")] = 100,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Print protocols by transfers: acceptance, effectiveness, lift against their tasks, block, roots."""
    from apc_console.commands.protocol.protocols_view import print_protocols
    from apc_console.system.running import run_quietly

    run_quietly(print_protocols(contract_file, run_id=run_id, limit=limit, as_json=as_json))

"""`apc protocol list`: print the rows of `list_protocols` as a table or JSON."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from apc_cli.commands.group import Commands, ContractFile, whole_run_id
from apc_cli.connections import open_log
from apc_cli.output.output import AsJson, print_rows
from apc_contracts.contract.contract import load_contract
from apc_log.queries import ProtocolRow, list_protocols

_SHORT = 19
"""Number of id characters shown in the table: `sha256:` and twelve digits; JSON has the whole id."""


def _flat(row: ProtocolRow) -> dict[str, Any]:
    values = asdict(row)
    figures: dict[str, Any] = values.pop("figures")
    return figures | values


# `apc protocol`: effectiveness and blocks of protocols.

app = Commands(help="Effectiveness and decay of protocols.")


@app.command("list")
async def list_(
    run_id: Annotated[
        str | None, typer.Option(help="Only what was transferred in this run.", parser=whole_run_id)
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many protocols.")] = 100,
    contract_file: ContractFile = None,
    as_json: AsJson = False,
) -> None:
    """Print protocols by transfers: acceptance, effectiveness, lift of their EVALs and imports, block, roots."""
    contract = load_contract(contract_file)
    async with open_log() as pool:
        protocols = await list_protocols(pool, contract, run_id=run_id, limit=limit)
    rows = [
        {
            "protocol": row.figures.protocol_id[:_SHORT],
            "transfers": row.figures.transfers,
            "accepted": row.figures.accepted,
            "effectiveness": row.figures.effectiveness,
            "outcome_lift": row.figures.outcome_lift,
            "compared_evals": row.figures.compared_evals,
            "import_lift": row.figures.import_lift,
            "imports": row.figures.imports,
            "drift_delta": row.figures.drift_delta,
            "blocked_since": row.blocked_at,
            "blocked_until": row.blocked_until,
            "roots": [root[:_SHORT] for root in row.roots],
        }
        for row in protocols
    ]
    print_rows(
        rows,
        title="protocols",
        as_json=as_json,
        empty="the log holds no TRANSFER that counts",
        document=[_flat(row) for row in protocols],
    )

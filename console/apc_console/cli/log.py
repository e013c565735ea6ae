"""`apc log`: the evidence of the log: keys, checkpoints, verification, proofs, bundles."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output import AsJson

app = typer.Typer(help="Prove the log, and verify it.", no_args_is_help=True)

KeyOption = Annotated[
    list[str] | None,
    typer.Option("--key", help="Public key, or a file of them (`apc log key`); default: of the log's own key."),
]


@app.command()
def key(
    create: Annotated[bool, typer.Option("--create", help="Make the signing key first, unless there is one.")] = False,
) -> None:
    """Print the public key of each shard: what whoever checks the log must know."""
    from apc_console.evidence import print_keys

    print_keys(create=create)


@app.command()
def verify(
    first: Annotated[int, typer.Option("--from", min=1, help="Begin at this entry; the tiles stand for the rest.")] = 1,
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option(help="File or folder of checkpoints that were exported; may be repeated."),
    ] = None,
    keys: KeyOption = None,
    as_json: AsJson = False,
) -> None:
    """Recompute the log from its rows; exit 1 and name the first entry that does not fit.

    Without checkpoints that were held outside of the database, a log that was cut or rewritten with the signing key
    looks whole.
    """
    from apc_console.evidence import verify_log
    from apc_console.running import run_quietly

    if not run_quietly(verify_log(first, checkpoints or [], keys or [], as_json=as_json)):
        raise typer.Exit(1)

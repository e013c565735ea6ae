"""`apc embedded`: what the embedded PostgreSQL keeps outside the data folder."""

import typer

from apc_console.output.terminal import echo

app = typer.Typer(help="The embedded PostgreSQL of root.", no_args_is_help=True)


@app.command()
def remove() -> None:
    """Remove the programs that were copied for root from an installation in a closed folder, and those of installations
    that are gone. The data stay; the next command that needs the programs copies them again."""
    from apc_persister.database.embedded import server_programs
    from apc_persister.database.programs import remove_copies

    removed = remove_copies(server_programs())
    for folder in removed:
        echo(f"removed {folder}")
    if not removed:
        echo("there are no copied programs")


@app.callback()
def _group() -> None: ...

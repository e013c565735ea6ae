"""`apc embedded`: what the embedded PostgreSQL keeps outside the data folder."""

from apc_cli.commands.group import Commands
from apc_cli.output.terminal import echo
from apc_persister.database.embedded import server_programs
from apc_persister.database.programs import remove_copies

app = Commands(help="The embedded PostgreSQL of root.")


@app.command()
def remove() -> None:
    """Remove the programs that were copied for root from an installation in a closed folder, and those of installations
    that are gone. The data stay; the next command that needs the programs copies them again."""
    removed = remove_copies(server_programs())
    for folder in removed:
        echo(f"removed {folder}")
    if not removed:
        echo("there are no copied programs")


@app.callback()
def _group() -> None: ...

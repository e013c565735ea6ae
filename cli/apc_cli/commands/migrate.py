"""`apc migrate`: bring the database to the schema of this release; `apc embedded`: what the embedded one keeps."""

from apc_bus.settings import DatabaseSettings
from apc_cli.commands.group import Commands
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo
from apc_client.in_process import migrate_url
from apc_persister.database.embedded import server_programs
from apc_persister.database.programs import remove_copies


async def migrate() -> None:
    """Migrate the database at APC_DATABASE_URL, and those of APC_DATABASES, to the schema of this release.

    Does nothing where it is current.
    """
    settings = DatabaseSettings()
    if settings.url is None:
        raise InputUnusable("set APC_DATABASE_URL; the embedded database is migrated when `apc up` starts")
    await migrate_url(settings.url, settings.other_urls)
    several = len(settings.other_urls) + 1
    echo("the database has the schema of this release" if several == 1 else f"{several} databases have the schema")


# `apc embedded`: what the embedded PostgreSQL keeps outside the data folder.

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

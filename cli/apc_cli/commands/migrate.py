"""`apc migrate`: bring the database to the schema of this release."""

from apc_bus.settings import DatabaseSettings
from apc_cli.errors import InputUnusable
from apc_cli.output.terminal import echo
from apc_client.in_process import migrate_url


async def migrate() -> None:
    """Migrate the database at APC_DATABASE_URL to the schema of this release; does nothing if it is current."""
    url = DatabaseSettings().url
    if url is None:
        raise InputUnusable("set APC_DATABASE_URL; the embedded database is migrated when `apc up` starts")
    await migrate_url(url)
    echo("the database has the schema of this release")

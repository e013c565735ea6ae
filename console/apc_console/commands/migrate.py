"""`apc migrate`: bring the database to the schema of this release."""

from apc_console.output.terminal import echo


def migrate() -> None:
    """Migrate the database at APC_DATABASE_URL to the schema of this release; does nothing if it is current."""
    from apc_bus.settings import DatabaseSettings
    from apc_console.connections import migrate_database
    from apc_console.system.running import run_quietly

    run_quietly(migrate_database(DatabaseSettings()))
    echo("the database has the schema of this release")

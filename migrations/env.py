"""Alembic environment: runs on the connection that `apc_persister.migrate` hands over, in its transaction."""

from alembic import context
from sqlalchemy import Connection, text

LOCK = 0x617063_6D696772
"""Key of the advisory lock: of several migrations that start together, one works and the rest wait."""


def run(connection: Connection) -> None:
    """Take the lock first, so that the revision is read only after a concurrent migration has committed."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK})
    if connection.scalar(text("SELECT to_regnamespace('apc_guard')")) is None:
        connection.execute(text("CREATE SCHEMA apc_guard"))
    context.configure(connection=connection, version_table_schema="apc_guard")
    with context.begin_transaction():
        context.run_migrations()


run(context.config.attributes["connection"])

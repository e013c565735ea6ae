"""Alembic environment: runs on the connection that `apc_persister.database.migrate` hands over, in its transaction."""

from alembic import context
from sqlalchemy import Connection, text

from apc_persister.database.guard import LOCK_SCHEMA


def run(connection: Connection) -> None:
    """Take the lock first, so that the revision is read only after a concurrent migration has committed.

    The scripts run in one recorded maintenance; what they left is then brought under the guard by the catalog.
    """
    connection.execute(text(LOCK_SCHEMA))
    if connection.scalar(text("SELECT to_regnamespace('apc_guard')")) is None:
        connection.execute(text("CREATE SCHEMA apc_guard"))
    context.configure(connection=connection, version_table_schema="apc_guard")
    found, head = context.get_context().get_current_revision(), context.script.get_current_head()
    if found == head:
        return
    if connection.scalar(text("SELECT to_regprocedure('apc_guard.maintain(text)')")) is not None:
        reason = f"the schema is migrated from {found} to {head}"
        connection.execute(text("SELECT apc_guard.maintain(:reason)"), {"reason": reason})
    with context.begin_transaction():
        context.run_migrations()
    if connection.scalar(text("SELECT to_regprocedure('apc_guard.cover()')")) is not None:
        connection.execute(text("SELECT apc_guard.cover()"))


run(context.config.attributes["connection"])

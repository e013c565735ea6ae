"""Upgrade a database before a system uses it."""

from datetime import timedelta

from apc_bus.database import DATABASE_AWAY, first_line, open_pool
from apc_bus.secrecy import hide_password
from apc_web.errors import ServiceAway

PATIENCE = timedelta(seconds=3)
"""How long to wait for a server that does not answer."""


async def migrate_url(url: str) -> None:
    """Upgrade the database at `url`. Raises ServiceAway when it does not answer or refuses."""
    from apc_persister.database.migrate import migrate

    try:
        # The pool waits for a server that is starting, and reports errors clearly; the migration does neither.
        pool = await open_pool(url, max_size=1, wait=PATIENCE)
        await pool.close()
        await migrate(url)
    except DATABASE_AWAY as error:
        raise ServiceAway(f"cannot migrate the database {hide_password(url)}: {first_line(error)}") from error

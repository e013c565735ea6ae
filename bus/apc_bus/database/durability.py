"""The settings of Postgres without which a returned COMMIT may be lost."""

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_bus.errors import DatabaseNotDurable

_DURABILITY = ("fsync", "full_page_writes", "synchronous_commit")


async def check_durability(connection: asyncpg.Connection | PoolConnectionProxy) -> None:
    """Make sure that a returned COMMIT survives a crash of the server.

    Raises:
        DatabaseNotDurable: fsync, full_page_writes or synchronous_commit is off.
    """
    off = await undurable_settings(connection)
    if off:
        raise DatabaseNotDurable(
            f"Postgres runs with {', '.join(off)} off and may lose committed rows: switch it on, "
            "or set APC_ALLOW_UNDURABLE_DATABASE=true for a test"
        )


async def undurable_settings(connection: asyncpg.Connection | PoolConnectionProxy) -> list[str]:
    """Return the settings that are off and without which a returned COMMIT may be lost; empty = durable."""
    rows = await connection.fetch("SELECT name, setting FROM pg_settings WHERE name = ANY($1)", _DURABILITY)
    return sorted(row["name"] for row in rows if row["setting"] == "off")

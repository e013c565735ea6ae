"""The pool of the web server: a role that may only read, and a limit for each statement."""

from datetime import timedelta

import asyncpg

from apc_bus.database import open_pool

READER = "apc_reader"
STATEMENT_SECONDS = 5
_CONNECTIONS = 8
_SETTINGS = {
    "role": READER,
    "statement_timeout": f"{STATEMENT_SECONDS}s",
    "default_transaction_read_only": "on",
    "application_name": "apc-web",
}


async def open_reader(url: str, wait: timedelta) -> asyncpg.Pool:
    """Return a pool that reads as `apc_reader`, 5 s a statement. Raises DatabaseUnavailable."""
    return await open_pool(
        url,
        max_size=_CONNECTIONS,
        wait=wait,
        command_timeout=timedelta(seconds=2 * STATEMENT_SECONDS),
        server_settings=_SETTINGS,
    )

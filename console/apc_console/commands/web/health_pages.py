"""The health pages of `apc serve web`: ready as long as the database answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from apc_bus.concurrency import cancelled, unasked_cancel_fails
from apc_bus.database import DATABASE_AWAY, first_line
from apc_bus.settings import ConsoleSettings
from apc_console.http.health import serve_health

PAUSE_SECONDS = 3.0


@asynccontextmanager
async def health_pages(pool: asyncpg.Pool, *, is_wanted: bool) -> AsyncIterator[None]:
    """Serve the pages while the context lasts; not at all without APC_HEALTH_PORT.

    Raises:
        InputUnusable: the address is taken, or we may not use it.
    """
    settings = ConsoleSettings()
    if not is_wanted or settings.health_port is None:
        yield
        return
    problems: list[str] = []
    asking = asyncio.create_task(_ask(pool, problems))
    try:
        with serve_health(settings.health_host, settings.health_port, lambda: tuple(problems)):
            yield
    finally:
        await cancelled(asking)


async def _ask(pool: asyncpg.Pool, problems: list[str]) -> None:
    """Keep what is wrong with the database in `problems`."""
    while True:
        try:
            with unasked_cancel_fails():
                await pool.fetchval("SELECT 1")
        except DATABASE_AWAY as error:
            problems[:] = [f"the database is away: {first_line(error)}"]
        else:
            problems.clear()
        await asyncio.sleep(PAUSE_SECONDS)

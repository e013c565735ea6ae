"""Wait by polling for what another process does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from apc_bus.database import is_passing

PAUSE_SECONDS = 0.02


async def until(
    holds: Callable[[], Awaitable[bool]], patience: timedelta | None, *, pause_seconds: float = PAUSE_SECONDS
) -> None:
    """Wait until the condition holds; while the database is away it does not. Raises TimeoutError after `patience`."""
    async with asyncio.timeout(None if patience is None else patience.total_seconds()):
        while True:
            try:
                if await holds():
                    return
            except Exception as error:
                if not is_passing(error):
                    raise
            await asyncio.sleep(pause_seconds)

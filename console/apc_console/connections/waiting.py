"""Wait by polling for what another process does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

PAUSE_SECONDS = 0.02


async def until(holds: Callable[[], Awaitable[bool]], patience: timedelta) -> None:
    """Wait until the condition holds. Raises TimeoutError after `patience`."""
    async with asyncio.timeout(patience.total_seconds()):
        while True:
            if await holds():
                return
            await asyncio.sleep(PAUSE_SECONDS)

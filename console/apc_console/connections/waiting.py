"""Waits for what another process brings about, by asking."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

PAUSE_SECONDS = 0.02


async def until(holds: Callable[[], Awaitable[bool]], patience: timedelta) -> None:
    """Return once it holds. Raises TimeoutError after `patience`."""
    async with asyncio.timeout(patience.total_seconds()):
        while True:
            if await holds():
                return
            await asyncio.sleep(PAUSE_SECONDS)

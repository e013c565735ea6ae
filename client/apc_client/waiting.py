"""Wait by polling for what another process does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

PAUSE_SECONDS = 0.02


async def until(
    holds: Callable[[], Awaitable[bool]], patience: timedelta | None, *, pause_seconds: float = PAUSE_SECONDS
) -> None:
    """Wait until the condition holds. Raises TimeoutError after `patience`; None = never."""
    async with asyncio.timeout(None if patience is None else patience.total_seconds()):
        while True:
            if await holds():
                return
            await asyncio.sleep(pause_seconds)

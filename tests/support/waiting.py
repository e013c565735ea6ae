"""Wait for a condition that has no event."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable

PAUSE_SECONDS = 0.01


async def until(
    condition: Callable[[], object | Awaitable[object]],
    seconds: float | None = 60,
    *,
    pause_seconds: float = PAUSE_SECONDS,
) -> None:
    """Wait until the condition, plain or asynchronous, gives something true.

    Raises TimeoutError after `seconds`; None = wait for as long as it takes.
    """
    async with asyncio.timeout(seconds):
        while True:
            holds = condition()
            if await holds if isawaitable(holds) else holds:
                return
            await asyncio.sleep(pause_seconds)

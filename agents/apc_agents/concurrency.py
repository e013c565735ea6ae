"""Two forms of running coroutines side by side that the standard library leaves to its users."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run beside the block, cancelled at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def first_of(*works: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Run all until the first has ended, and raise what it raised; coroutines are then cancelled, tasks go on."""
    own = [asyncio.create_task(work) for work in works if not isinstance(work, asyncio.Task)]
    given = [work for work in works if isinstance(work, asyncio.Task)]
    try:
        await asyncio.wait((*own, *given), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            if not task.done():
                task.cancel()
        results = await asyncio.gather(*own, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    for task in given:
        if task.done():
            task.result()

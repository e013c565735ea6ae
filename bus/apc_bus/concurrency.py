"""Forms of running coroutines side by side that the standard library leaves to its users."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

PATIENCE = 5.0
"""Seconds that a cancelled task may take to clean up before it is asked again."""


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[asyncio.Task[None]]:
    """Run beside the block, cancelled at its end."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await cancelled(task)


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait for their end; what they raised is left in them.

    A task that goes on is cancelled again: a library may turn a cancellation into its own error (measured:
    aiormq, while a channel is being opened), and `asyncio.wait_for` of Python 3.11 drops one that comes together with
    its result. Who repeats what failed then goes on.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=PATIENCE)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # seen: nobody else will look


async def first_of(*works: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Run all until the first has ended, and raise what it raised; coroutines are then cancelled, tasks go on."""
    own = [asyncio.create_task(work) for work in works if not isinstance(work, asyncio.Task)]
    given = [work for work in works if isinstance(work, asyncio.Task)]
    try:
        await asyncio.wait((*own, *given), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in (*own, *given) if task.done()]
        await cancelled(*own)
    for task in ended:
        task.result()


def is_cancelled() -> bool:
    """Return whether this task was told to end.

    A loop has to ask: aiormq turns a cancelled call into another error.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Forms of running coroutines side by side that the standard library leaves to its users."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any

from apc_bus.errors import CallAborted, TaskEnded

PATIENCE = 5.0
"""Seconds that a cancelled task may take to clean up before it is asked again."""


class _UnaskedCancelFails:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError) and not is_cancelled():
            raise CallAborted("the connection was lost: a call was cancelled that nobody had told to end") from error


_UNASKED_CANCEL_FAILS = _UnaskedCancelFails()


def unasked_cancel_fails() -> _UnaskedCancelFails:
    """Return a context in which a CancelledError that this task was not asked for becomes CallAborted, an error.

    aiormq raises CancelledError from the calls that are open when it gives up a connection, and so does the await of a
    task that somebody else cancelled. `except Exception` does not catch it, and a TaskGroup ignores a child that ended
    so: what nobody asked for would end a service without a word. A cancellation by `Task.cancel`, a TaskGroup,
    `asyncio.timeout` or the end of the event loop passes. Every await of aiormq stands in such a context
    (tests/architecture/test_library_calls.py).
    """
    return _UNASKED_CANCEL_FAILS


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
    """Run all until the first has ended, and raise what it raised; coroutines are then cancelled, tasks go on.

    Raises:
        CallAborted: it was cancelled.
    """
    own = [asyncio.create_task(work) for work in works if not isinstance(work, asyncio.Task)]
    given = [work for work in works if isinstance(work, asyncio.Task)]
    try:
        await asyncio.wait((*own, *given), return_when=asyncio.FIRST_COMPLETED)
    finally:
        ended = [task for task in (*own, *given) if task.done()]
        await cancelled(*own)
    with unasked_cancel_fails():
        for task in ended:
            task.result()


async def until_stopped(stop: asyncio.Event, services: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run services side by side until each has ended after `stop`; one that ends before it ends the others too.

    Unlike a TaskGroup it takes the end of a cancelled service for a failure, and raises the first failure itself.

    Args:
        services: by a name for the error, coroutines that run until `stop` is set.

    Raises:
        TaskEnded: a service returned before it was told to stop.
        CallAborted: a service was cancelled, and this task was not.
        Exception: whatever a service raised.
    """
    tasks = {asyncio.create_task(work, name=name) for name, work in services.items()}
    pending = tasks
    try:
        while pending:
            ended, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                if (error := failure_of(task)) is not None:
                    raise error
                if not stop.is_set():
                    raise TaskEnded(f"{task.get_name()} has ended without having been told to stop")
    finally:
        await cancelled(*tasks)


def failure_of(ended: asyncio.Future[Any]) -> BaseException | None:
    """Return what an ended task raised; CallAborted for one that was cancelled, None for one that returned."""
    if ended.cancelled():
        return CallAborted("it was cancelled, and nobody had told it to end")
    return ended.exception()


def is_cancelled() -> bool:
    """Return whether this task was told to end.

    A loop has to ask: aiormq turns a cancelled call into another error.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

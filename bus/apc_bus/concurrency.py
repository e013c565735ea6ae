"""Coroutines side by side, cancellations that nobody asked for, what runs again after growing pauses, and the clock."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

from apc_bus.errors import CallAborted, TaskEnded
from apc_bus.telemetry import get_logger

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return seconds since boot, suspension included (CLOCK_BOOTTIME; other systems: the monotonic clock).

    The clock of self-fencing: it goes on while the machine is suspended, and nobody can set it.
    """
    return time.clock_gettime(_CLOCK)


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


def end_future(future: asyncio.Future[None], error: BaseException | None) -> None:
    """End a future, with an error or without; one that has ended stays as it is."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def is_cancelled() -> bool:
    """Return whether this task was told to end.

    A loop has to ask: aiormq turns a cancelled call into another error.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Backoff:
    """Pauses that double up to `longest` seconds, each shortened by up to half.

    The jitter keeps those who wait for the same server from returning at the same moment.

    Args:
        first: seconds; the first pause before its jitter.
        stop: ends a pause at once when it is set.
    """

    def __init__(self, first: float, longest: float, stop: asyncio.Event | None = None) -> None:
        self._first = first
        self._longest = longest
        self._stop = stop
        self.reset()

    def reset(self) -> None:
        """Begin with the first pause again: an attempt has succeeded."""
        self.is_fresh = True
        """Whether no attempt has failed since the last success: what lasts is told once."""
        self._full = min(self._first, self._longest)
        self.pause = self._full * random.uniform(0.5, 1.0)
        """Seconds of the coming pause."""

    def take(self) -> float:
        """Return the seconds of the coming pause; the one after it is longer."""
        pause, self.is_fresh = self.pause, False
        self._full = min(2 * self._full, self._longest)
        self.pause = self._full * random.uniform(0.5, 1.0)
        return pause

    async def wait(self) -> None:
        """Wait for the coming pause, or until told to stop."""
        pause = self.take()
        if self._stop is None:
            await asyncio.sleep(pause)
            return
        try:
            async with asyncio.timeout(pause):
                await self._stop.wait()
        except TimeoutError:
            pass


# Long-lived tasks never die silently: what fails is logged, tried again with back-off, and told to /readyz.

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
MOST_TOLD = 10
"""Failed tasks that /readyz names: a process may have thousands of one kind."""

Result = TypeVar("Result")

_log = get_logger("apc_bus")


class Health:
    """Which tasks have failed in a way that nobody expected, and why; what it says may be read from any thread."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, str] = {}

    @property
    def problems(self) -> list[str]:
        """A sentence for each task that has failed and is not at work again, the first ones."""
        failed = islice(self._failed.copy().items(), MOST_TOLD)
        return [f"{task} has failed: {reason}" for task, reason in failed]

    def fail(self, task: Hashable, reason: str) -> None:
        """Record that the task has stopped."""
        self._failed[task] = reason

    def resume(self, task: Hashable) -> None:
        """Record that the task works again."""
        self._failed.pop(task, None)


def reason_of(error: BaseException) -> str:
    """Return the first line of what an error says, or its name."""
    return (str(error) or type(error).__name__).splitlines()[0]


async def run_until_success(
    work: Callable[[], Awaitable[Result]],
    *,
    name: str,
    task: Hashable,
    awaits: tuple[type[Exception], ...],
    health: Health,
) -> Result:
    """Run `work` until it succeeds; return its result.

    `awaits` are the errors of a service that is away: one warning, and it is waited for. Every other error is a fault
    of ours: logged with its trace, and `health` tells until the next attempt. So is a cancellation that nobody asked
    for. `task` names this piece of work.
    """
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
    try:
        while True:
            try:
                with unasked_cancel_fails():
                    return await work()
            except awaits as error:
                if backoff.is_fresh:
                    _log.warning(f"{name}_waits", task=str(task), reason=reason_of(error))
            except Exception as error:
                _log.exception(f"{name}_failed", task=str(task), next_attempt_seconds=backoff.pause)
                health.fail(task, reason_of(error))
            await backoff.wait()
            health.resume(task)
    finally:
        health.resume(task)


async def keep_running(
    work: Callable[[], Awaitable[None]],
    *,
    task: str,
    health: Health,
    stop: asyncio.Event,
    fatal: tuple[type[Exception], ...] = (),
) -> None:
    """Run a long-lived task until `stop` is set; one that ends before is begun again with back-off, however it ended.

    Raises:
        Exception: one of `fatal`, which no attempt mends; `health` keeps reporting it.
    """
    loop = asyncio.get_running_loop()
    backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, stop)
    while True:
        began = loop.time()
        try:
            with unasked_cancel_fails():
                await work()
            if stop.is_set() or is_cancelled():
                return
            raise TaskEnded(f"{task} has ended without having been told to stop")
        except Exception as error:
            health.fail(task, reason_of(error))
            if isinstance(error, fatal) and not isinstance(error, CallAborted | TaskEnded):
                raise
            if loop.time() - began > LONGEST_PAUSE_SECONDS:
                backoff.reset()  # it went well for a while: this is a new problem
            _log.exception("task_failed", task=task, next_attempt_seconds=backoff.pause)
        if stop.is_set():
            return
        await backoff.wait()
        health.resume(task)

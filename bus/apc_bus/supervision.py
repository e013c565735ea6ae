"""Long-lived tasks never die silently: what fails is logged, tried again with back-off, and told to /readyz."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from itertools import islice
from typing import TypeVar

import structlog

from apc_bus.backoff import Backoff
from apc_bus.concurrency import is_cancelled, unasked_cancel_fails
from apc_bus.errors import CallAborted, TaskEnded

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0
MOST_TOLD = 10

Result = TypeVar("Result")

_log = structlog.get_logger("apc_bus")


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

    `awaits` are the errors of a service that is away: a warning, and it is waited for. Every other error is a fault
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

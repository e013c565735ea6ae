"""Tasks beside the gate never die silently: what fails is logged, tried again with back-off, and told to /readyz."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TypeVar

import structlog

FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 10.0

Result = TypeVar("Result")

_log = structlog.get_logger("apc_orchestrator")


class Health:
    """Which tasks have failed in a way that nobody expected and wait for their next attempt."""

    def __init__(self) -> None:
        self._failed: set[Hashable] = set()

    @property
    def is_well(self) -> bool:
        """Nothing has failed, or all that did is at work again."""
        return not self._failed

    def fail(self, task: Hashable) -> None:
        """The task has stopped."""
        self._failed.add(task)

    def resume(self, task: Hashable) -> None:
        """The task works again."""
        self._failed.discard(task)


async def persevere(
    work: Callable[[], Awaitable[Result]],
    *,
    name: str,
    task: Hashable,
    awaits: tuple[type[Exception], ...],
    health: Health,
) -> Result:
    """What the work gives, however often it has to be begun.

    `awaits` are the errors of a service that is away: a warning, and it is waited for. Every other error is a fault
    of ours: logged with its trace, and `health` tells until the next attempt. `task` names this piece of work.
    """
    pause = FIRST_PAUSE_SECONDS
    try:
        while True:
            try:
                return await work()
            except awaits as error:
                _log.warning(f"{name}_waits", task=str(task), reason=str(error) or type(error).__name__)
            except Exception:
                _log.exception(f"{name}_failed", task=str(task), next_attempt_seconds=pause)
                health.fail(task)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            health.resume(task)
    finally:
        health.resume(task)

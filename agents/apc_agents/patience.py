"""Waiting for a database that is away, for what cannot go on without it."""

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from apc_agents.errors import StateUnavailable
from apc_bus.concurrency import Backoff, unasked_cancel_fails
from apc_bus.database import first_line, is_away, is_of_statement, is_passing
from apc_bus.telemetry import get_logger

ATTEMPTS, SECONDS = 5, 30.0
"""A statement that the server gives up each time is repeated until both are reached, counted from the first time."""
FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds between two attempts."""

ResultT = TypeVar("ResultT")

_log = get_logger("apc_agents")


async def patiently(
    action: Callable[[], Awaitable[ResultT]],
    what: str,
    *,
    is_patient: bool = True,
    awaits: Callable[[BaseException], bool] = is_passing,
) -> ResultT:
    """Run an action, and repeat it while the database is away; `what` names the store in the log.

    An attempt that was cut off may have been committed: the action must be one that may be repeated. While the
    database is away nothing bounds the wait but who cancels it, such as a time limit of the handler. Where the server
    works and gives up this statement (too slow, cancelled, too large, a deadlock), the attempts are bounded.

    Args:
        awaits: whether an error passes by itself; default every one of a database that is away, or of one statement.

    Raises:
        StateUnavailable: at the first attempt that finds the database away, when not patient.
        Exception: what `awaits` does not take, and what the last of the bounded attempts raised.
    """
    backoff, bound = Backoff(FIRST_WAIT, LONGEST_WAIT), _Bound()
    while True:
        try:
            with unasked_cancel_fails():
                return await action()
        except Exception as error:
            if not awaits(error) or bound.is_reached(error):
                raise
            if not is_patient:
                if is_away(error):
                    raise StateUnavailable(f"the {what} does not answer: {first_line(error)}") from error
                raise
            if backoff.is_fresh:
                _log.warning("store_unavailable", store=what, reason=first_line(error))
        await backoff.wait()


class _Bound:
    """Of the attempts whose statement was given up by a server that works."""

    def __init__(self) -> None:
        self._attempts = 0
        self._since = 0.0

    def is_reached(self, error: BaseException) -> bool:
        """Count an attempt by its error; return whether it was the last one."""
        if not _is_of_statement(error):
            return False
        now = time.monotonic()
        self._since = self._since if self._attempts else now
        self._attempts += 1
        return self._attempts >= ATTEMPTS and now - self._since >= SECONDS


def _is_of_statement(error: BaseException | None) -> bool:
    """Return whether the database works and gave up a statement; the error of a store tells it by its cause."""
    while error is not None and not is_passing(error):
        error = error.__cause__
    return error is not None and is_of_statement(error)

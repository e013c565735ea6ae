"""Waiting for a database that is away, for what cannot go on without it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from apc_agents.errors import StateUnavailable
from apc_bus.backoff import Backoff
from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.database import first_line, is_away, is_passing

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds between two attempts."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("apc_agents")


async def patiently(
    action: Callable[[], Awaitable[ResultT]],
    what: str,
    *,
    is_patient: bool = True,
    awaits: Callable[[BaseException], bool] = is_passing,
) -> ResultT:
    """Run an action, and repeat it while the database is away; `what` names the store in the log.

    An attempt that was cut off may have been committed: the action must be one that may be repeated. Nothing bounds
    the wait but who cancels it, such as a time limit of the handler.

    Args:
        awaits: whether an error passes by itself; default every one of a database that is away.

    Raises:
        StateUnavailable: at the first attempt that finds the database away, when not patient.
    """
    backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
    while True:
        try:
            with unasked_cancel_fails():
                return await action()
        except Exception as error:
            if not awaits(error):
                raise
            if not is_patient:
                if is_away(error):
                    raise StateUnavailable(f"the {what} does not answer: {first_line(error)}") from error
                raise
            _log.warning("store_unavailable", store=what, reason=first_line(error))
        await backoff.wait()

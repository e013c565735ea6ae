"""Waiting for a database that is away, for what cannot go on without it."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from apc_agents.errors import StateUnavailable
from apc_bus.backoff import Backoff
from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.database import CONNECTION_LOST

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0
"""Seconds between two attempts."""

ResultT = TypeVar("ResultT")

_log = structlog.get_logger("apc_agents")


async def patiently(action: Callable[[], Awaitable[ResultT]], what: str, *, is_patient: bool = True) -> ResultT:
    """Run an action, and repeat it while the database is away; `what` names the store in the log.

    An attempt that was cut off may have been committed: the action must be one that may be repeated.

    Raises:
        StateUnavailable: at the first attempt that fails, when not patient.
    """
    backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
    while True:
        try:
            with unasked_cancel_fails():
                return await action()
        except CONNECTION_LOST as error:
            if not is_patient:
                raise StateUnavailable(f"the {what} does not answer: {error}") from error
            _log.warning("store_unavailable", store=what, reason=str(error))
        await backoff.wait()

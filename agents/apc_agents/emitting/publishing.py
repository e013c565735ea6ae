"""Confirmed publishing that does not give up at the first failure."""

import asyncio
from datetime import timedelta

import structlog

from apc_agents.errors import EmitUnconfirmed
from apc_bus.backoff import Backoff
from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusUnavailable, PublishError
from apc_bus.port import Bus, Publication

FIRST_WAIT = 0.05
LONGEST_WAIT = 5.0
"""Seconds between two attempts."""

_log = structlog.get_logger("apc_agents")


async def publish_confirmed(bus: Bus, publication: Publication, deadline: timedelta | None) -> None:
    """Publish until the broker confirms.

    The same bytes go out again after each failure, never while an earlier attempt is in flight. That is safe even
    when an earlier attempt was stored: the gate knows the packet by its id, a receipt by its packet and kind.

    Args:
        deadline: for all attempts together; None = try forever.

    Raises:
        EmitUnconfirmed: the deadline has passed.
    """
    loop = asyncio.get_running_loop()
    end = None if deadline is None else loop.time() + deadline.total_seconds()
    backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
    while True:
        try:
            with unasked_cancel_fails():
                return await bus.publish(publication)
        except (PublishError, BusUnavailable) as error:
            message_id = publication.message.message_id
            if end is not None and loop.time() + backoff.pause > end:
                raise EmitUnconfirmed(message_id, f"{type(error).__name__}: {error}") from error
            _log.warning("publish_repeated", message_id=message_id, error=type(error).__name__, reason=str(error))
        await backoff.wait()

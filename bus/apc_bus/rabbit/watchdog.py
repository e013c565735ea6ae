"""Compares what should consume with what does, and starts again what does not (docs/specification/architecture.md
section 9).

A robust connection knows one address, and consumers have been seen not to come back after a node was lost.
"""

import asyncio
from typing import Protocol

import structlog

CHECK_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 5.0
"""Between two attempts to repair."""
GRACE_SECONDS = 3.0
"""So long the library may recover by itself, on the node that it knows."""

_log = structlog.get_logger("apc_bus")


class Repairable(Protocol):
    """A consumer that should be live."""

    async def check(self) -> bool:
        """Return whether the broker has this consumer, as far as this side knows."""
        ...

    async def repair(self) -> None:
        """Start again, at any node. Raises BusError when that does not work yet."""
        ...


async def watch(name: str, consumer: Repairable) -> None:
    """Keep a consumer live until cancelled."""
    loop = asyncio.get_running_loop()
    last_live, pause = loop.time(), CHECK_SECONDS
    while not is_cancelled():
        await asyncio.sleep(pause)
        try:
            if not await consumer.check():
                if loop.time() - last_live <= GRACE_SECONDS:
                    continue
                await consumer.repair()
                _log.warning("consumer_repaired", consumer=name)
            last_live, pause = loop.time(), CHECK_SECONDS
        except Exception as error:  # whatever it is: a watchdog that died would be silent
            _log.warning("consumer_repair_failed", consumer=name, reason=repr(error))
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def is_cancelled() -> bool:
    """Return whether this task was told to end.

    A loop has to ask: aiormq makes an error of its own of a cancelled call.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0

"""Compares what should consume with what does, and starts again what does not (quality.md section 2).

A robust connection knows one address, and consumers have been seen not to come back after a node was lost.
"""

import asyncio
from typing import Protocol

import structlog

from apc_bus.errors import BusError

CHECK_SECONDS = 0.5
GRACE_SECONDS = 3.0
"""So long the library may recover by itself, on the node that it knows."""

_log = structlog.get_logger("apc_bus")


class Repairable(Protocol):
    """A consumer that should be live."""

    @property
    def is_live(self) -> bool:
        """Whether the broker has this consumer, as far as this side knows."""
        ...

    async def repair(self) -> None:
        """Start again, at any node. Raises BusError when that does not work yet."""
        ...


async def watch(name: str, consumer: Repairable) -> None:
    """Keep a consumer live until cancelled."""
    loop = asyncio.get_running_loop()
    last_live = loop.time()
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        if consumer.is_live:
            last_live = loop.time()
        elif loop.time() - last_live > GRACE_SECONDS:
            try:
                await consumer.repair()
            except BusError as error:
                _log.warning("consumer_repair_failed", consumer=name, reason=str(error))
            else:
                _log.warning("consumer_repaired", consumer=name)
                last_live = loop.time()

"""Looks at the queues of the running system, shared by all pages."""

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

from apc_bus.errors import BusError
from apc_bus.port import QueueDepth
from apc_web.errors import InputUnusable, ServiceAway

KEPT_SECONDS = 3.0
Depths = Mapping[str, QueueDepth]
"""Queue -> messages and consumers."""


class SystemProbe(Protocol):
    """Looks at the queues of a running system."""

    async def depths(self) -> Depths:
        """Return queue -> depth, for gates and log writers. Raises InputUnusable, ServiceAway, BusError."""
        ...


class CachedProbe:
    """Asks for the queues at most every 3 s, whatever number of pages is open.

    Args:
        probe: asks.
    """

    def __init__(self, probe: SystemProbe) -> None:
        self._probe = probe
        self._asking = asyncio.Lock()
        self._asked = -KEPT_SECONDS
        self._found: Depths | str = ""

    async def depths(self) -> Depths | str:
        """Return the depths, or one sentence that says why nobody knows them."""
        async with self._asking:
            if time.monotonic() - self._asked >= KEPT_SECONDS:
                try:
                    self._found = await self._probe.depths()
                except (InputUnusable, ServiceAway) as error:
                    self._found = str(error)
                except BusError:  # its words may name nodes and users
                    self._found = "the broker does not answer"
                self._asked = time.monotonic()
            return self._found

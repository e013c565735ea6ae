"""Looks at the queues of the running system, shared by all pages."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from apc_bus.concurrency import unasked_cancel_fails
from apc_bus.errors import BusError
from apc_bus.port import QueueDepth
from apc_contracts.errors import InputUnusable, ServiceAway

KEPT_SECONDS = 3.0
LONGEST_SECONDS = 10.0
"""That a look takes before everybody who waits for it is told that nobody knows."""
MOST_INBOXES = 200
"""Agents and hosts whose queues are looked at: each needs two questions to the broker."""
NO_WAY = "this server has no way to the queues"
Depths = Mapping[str, QueueDepth]
"""Queue, or agent -> messages and consumers."""


class SystemProbe(Protocol):
    """Looks at the queues of a running system."""

    async def depths(self) -> Depths:
        """Return queue -> depth, for orchestrators and persisters. Raises InputUnusable, ServiceAway, BusError."""
        ...

    async def inboxes(self, agents: Mapping[str, str | None]) -> Depths:
        """Return agent -> messages and consumers of its two queues together; an agent without queues is left out.

        Args:
            agents: agent -> its host, whose queues it shares; None = it has its own.

        Raises InputUnusable, ServiceAway, BusError.
        """
        ...


class CachedProbe:
    """Asks for the queues at most every 3 s, whatever number of pages is open.

    Args:
        probe: asks.
    """

    def __init__(self, probe: SystemProbe) -> None:
        self._probe = probe
        self._services = _Kept()
        self._inboxes = _Kept()

    async def depths(self) -> Depths | str:
        """Return the depths of orchestrators and persisters, or one sentence that says why nobody knows them."""
        return await self._services.get({}, self._probe.depths)

    async def inboxes(self, agents: Mapping[str, str | None]) -> Depths | str:
        """Return the depths of agents, or one sentence that says why nobody knows them."""
        if not agents:
            return {}
        return await self._inboxes.get(agents, lambda: self._probe.inboxes(agents))


class _Kept:
    """The last answer to one question, for 3 s."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._asked = -KEPT_SECONDS
        self._of: Mapping[str, str | None] = {}
        self._found: Depths | str = ""

    async def get(self, of: Mapping[str, str | None], ask: Callable[[], Awaitable[Depths]]) -> Depths | str:
        async with self._asking:
            if time.monotonic() - self._asked >= KEPT_SECONDS or of != self._of:
                try:
                    with unasked_cancel_fails():
                        async with asyncio.timeout(LONGEST_SECONDS):
                            self._found = await ask()
                except (InputUnusable, ServiceAway) as error:
                    self._found = str(error)
                except (BusError, TimeoutError):  # the words of a broker may name nodes and users
                    self._found = "the broker does not answer"
                self._asked, self._of = time.monotonic(), of
            return self._found

"""The packets that wait for a handler: urgent ones first, one session never twice at once."""

import asyncio
from collections import deque
from collections.abc import Iterator

from apc_agents.receiving.delivery import Inbound

URGENT_IN_A_ROW = 8
"""After so many urgent packets one normal packet has its turn (docs/specification/architecture.md section 3)."""


class Inbox:
    """Two queues in the worker's memory; the broker's prefetch bounds them."""

    def __init__(self) -> None:
        self._urgent: deque[Inbound] = deque()
        self._normal: deque[Inbound] = deque()
        self._busy: set[str] = set()
        self._urgent_in_a_row = 0
        self._changed = asyncio.Event()
        self._is_closed = False

    def put(self, inbound: Inbound) -> None:
        """Take a packet that has arrived."""
        (self._urgent if inbound.is_urgent else self._normal).append(inbound)
        self._changed.set()

    async def get(self) -> Inbound | None:
        """Return the next packet whose session is free; its session is busy until `release`. None once closed."""
        while (inbound := self._next()) is None:
            if self._is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        self._busy.add(inbound.session_id)
        return inbound

    def release(self, inbound: Inbound) -> None:
        """Free the session of a handled packet."""
        self._busy.discard(inbound.session_id)
        self._changed.set()

    def close(self) -> Iterator[Inbound]:
        """Hand out no more packets; return those that wait."""
        self._is_closed = True
        self._changed.set()
        for queue in (self._urgent, self._normal):
            while queue:
                yield queue.popleft()

    def _next(self) -> Inbound | None:
        order = (self._urgent, self._normal)
        if self._urgent_in_a_row >= URGENT_IN_A_ROW:
            order = (self._normal, self._urgent)
        for queue in order:
            if (inbound := self._first_free(queue)) is not None:
                self._urgent_in_a_row = self._urgent_in_a_row + 1 if queue is self._urgent else 0
                return inbound
        return None

    def _first_free(self, queue: deque[Inbound]) -> Inbound | None:
        if not self._busy:
            return queue.popleft() if queue else None
        # A packet behind another one of its session waits for that one, so the order of a session stands.
        for index, inbound in enumerate(queue):
            if inbound.session_id not in self._busy:
                del queue[index]
                return inbound
        return None

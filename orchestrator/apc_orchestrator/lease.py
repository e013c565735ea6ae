"""One lease of a shard: the epoch under which an orchestrator judges, logs and delivers, and when it is in doubt."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Self
from uuid import UUID

from apc_bus.concurrency import Health, cancelled, run_until_success, unasked_cancel_fails
from apc_bus.errors import BusError
from apc_bus.port import Bus
from apc_bus.telemetry import get_logger


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to serve a shard, granted by the persister. It ends when a later epoch is granted."""

    shard: int
    epoch: int
    committed: str
    """`<epoch>.<batch_no>` of the last batch committed before this epoch: the fencing token of every delivery."""
    user: str
    """The broker user of the orchestrator."""
    holder: UUID


# Self-fencing: how long a broker may be silent before its orchestrator leaves the shard.
#
# Source: docs/specification/architecture.md section 2.

_log = get_logger("apc_orchestrator")

QUESTIONS_A_HEARTBEAT = 4


@dataclass(frozen=True, slots=True)
class Fence:
    """The longest silence allowed, and the interval between questions that keep a living broker from being silent.

    A broker may send its own heartbeats almost one heartbeat interval apart, and drops a connection after two.
    """

    silence_seconds: float
    question_seconds: float

    @classmethod
    def of(cls, heartbeat: timedelta) -> Self:
        """Return the fence of a connection with this heartbeat."""
        seconds = heartbeat.total_seconds()
        return cls(silence_seconds=seconds, question_seconds=seconds / QUESTIONS_A_HEARTBEAT)


class Questions:
    """Asks the broker repeatedly, once for all shards of a process: without other traffic the answers end the silence.

    All shards consume over one connection, and silence is that of the connection. A question without an answer is the
    last one until another shard is stood by for: a new connection would answer for the lost one, and an orchestrator
    that was frozen would go on.
    """

    def __init__(self, bus: Bus, fence: Fence, health: Health) -> None:
        self._bus = bus
        self._fence = fence
        self._health = health
        self._hearing: list[str] = []
        self._asking: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def asked(self, queue: str) -> AsyncIterator[None]:
        """Ask while the context is open, about one of the queues that are open."""
        self._hearing.append(queue)
        if self._asking is None or self._asking.done():
            asked = run_until_success(self._ask, name="question", task="questions", awaits=(), health=self._health)
            self._asking = asyncio.create_task(asked)
        try:
            yield
        finally:
            self._hearing.remove(queue)
            if not self._hearing:
                ended, self._asking = self._asking, None  # who comes meanwhile asks again
                await cancelled(ended)

    async def _ask(self) -> None:
        queue = ""
        try:
            while True:
                await asyncio.sleep(self._fence.question_seconds)
                queue = self._hearing[0]
                with unasked_cancel_fails():
                    await self._bus.depth(queue)
        except BusError as error:
            _log.warning("question_unanswered", queue=queue, reason=str(error))

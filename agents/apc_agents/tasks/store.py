"""Where tasks are kept: the port, and how those who wait for news are woken."""

import asyncio
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from pydantic import JsonValue

from apc_agents.tasks.model import Claim, NewTask, Task, TaskEvent, TaskStatus
from apc_agents.tools.call import MakeEffect

MAX_LISTED = 1_000


class News:
    """Wakes, in this process, who waits for a change."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = asyncio.Condition()

    @property
    def count(self) -> int:
        """The changes so far."""
        return self._count

    async def tell(self) -> None:
        """Wake everybody who waits for a change."""
        async with self._changed:
            self._count += 1
            self._changed.notify_all()

    async def since(self, count: int, patience: timedelta) -> None:
        """Wait until there were more changes than `count`, or until patience ends."""
        try:
            async with asyncio.timeout(patience.total_seconds()), self._changed:
                await self._changed.wait_for(lambda: self._count > count)
        except TimeoutError:
            pass


class TaskStore(Protocol):
    """Tasks by their id. Durable when a call returns. All times are the store's own.

    A run of a task is named by its attempt; what an older attempt writes is refused with TaskLost. Every change of a
    status, and progress by PROGRESS_STEP, leaves an event that is to be announced.
    """

    news: News
    """Told of every change that this process makes."""

    async def add(self, task: NewTask) -> Task:
        """Keep a task, PENDING. One with this id that is there already stands; returns the one that is kept."""
        ...

    async def get(self, task_id: UUID) -> Task:
        """Return the task. Raises TaskUnknown."""
        ...

    async def list(
        self,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        statuses: Collection[TaskStatus] | None = None,
        limit: int = 100,
    ) -> Sequence[Task]:
        """Return the newest tasks, newest first; at most MAX_LISTED."""
        ...

    async def claim(self, agent_id: str, worker: str, lease: timedelta) -> Claim | None:
        """Return the oldest task of the agent that can run, as RUNNING, for as long as the lease.

        None when there is none.

        It can run when what it depends on has succeeded, and it is PENDING or its lease has ended. On the way, those
        whose prerequisite did not succeed are CANCELLED, and those that lost MAX_LOST_LEASES leases FAILED.
        """
        ...

    async def renew(self, task_id: UUID, attempt: int, lease: timedelta) -> str | None:
        """Lengthen the lease; returns why the task is to be cancelled, None when it is not. Raises TaskLost."""
        ...

    async def progress(self, task_id: UUID, attempt: int, fraction: float, note: str | None) -> None:
        """Keep how far it is. Raises TaskLost."""
        ...

    async def finish(
        self, task_id: UUID, attempt: int, status: TaskStatus, *, result: JsonValue = None, error: str | None = None
    ) -> None:
        """Keep how it ended. Raises TaskLost."""
        ...

    async def release(self, task_id: UUID, attempt: int) -> None:
        """Make it PENDING again, for another worker; nothing happens when it is lost already."""
        ...

    async def once(self, task_id: UUID, attempt: int, name: str, make: MakeEffect) -> JsonValue:
        """Return what the effect of this name gave, made now unless an attempt of this task has made it.

        Raises TaskLost.
        """
        ...

    async def cancel(self, task_id: UUID, reason: str) -> Task:
        """Cancel it: at once when no worker has it, else by its worker; one that has ended stays as it is.

        Raises:
            TaskUnknown: there is no such task.
        """
        ...

    async def purge(self, before: datetime, agent_id: str | None = None) -> int:
        """Delete what ended before this moment, with its effects; returns how many tasks there were.

        Those that a waiting task needs stay, and those of which something is still to be announced.
        """
        ...

    async def unannounced(self, agent_id: str, limit: int = 100) -> Sequence[TaskEvent]:
        """Return the events of the agent's tasks that are not announced yet, in order."""
        ...

    async def announced(self, task_id: UUID, number: int) -> None:
        """Record that the event was announced."""
        ...

"""Where tasks are kept: the port, and how those who wait for news are woken."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from pydantic import Field, JsonValue

from apc_contracts.agent import ActionType, SecurityLevel
from apc_contracts.contract_model import Model, OpenMap


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect that is to be made once.

    `key` is the same in every attempt: give it to a service that knows idempotency keys. `connection` is the
    transaction that also records the effect, so that what is written with it is written once; None where tasks are
    kept in memory.
    """

    key: str
    connection: Any = None


MakeEffect = Callable[[Effect], Awaitable[JsonValue]]

# What a task is: what it does, where it came from, how far it is.

MAX_LOST_LEASES = 5
"""Workers that may die while they run a task, before it is given up: it may be what kills them."""
PROGRESS_STEP = 0.1
"""Progress is announced when it has grown by so much; every report of it is readable."""


class TaskStatus(StrEnum):
    """Where a task stands."""

    PENDING = "PENDING"
    """Waits for a worker, or for the tasks that it depends on."""
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


ENDED = frozenset({TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELLED})


class TaskOrigin(Model):
    """The packet whose handler started the task: its announcements have the same trace."""

    packet_id: UUID
    root_packet_id: UUID
    run_id: str
    task_id: str


class TaskSpec(Model):
    """What a task does. Never changes.

    `params` still hold their references: `variables` and `results` are what was known when the task started,
    `awaited` says which task gives the result of an action_id that was not known.
    """

    action_id: str
    action: str
    type: ActionType
    params: OpenMap = Field(default_factory=dict)
    variables: OpenMap = Field(default_factory=dict)
    results: OpenMap = Field(default_factory=dict)
    awaited: dict[str, UUID] = Field(default_factory=dict)
    security_level: SecurityLevel
    knowledge: tuple[str, ...] = ()
    display: str | None = None
    origin: TaskOrigin | None = None
    announce_to: tuple[str, ...] = ()
    """Agents that are told of it; none = the agent itself, by INTRA_AGENT packets."""
    compartment: str = ""
    """The compartment of the one who caused it: an LLM agent is told its result there only."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be kept. `depends_on` are tasks that must succeed before it runs."""

    task_id: UUID
    agent_id: str
    session_id: str
    spec: TaskSpec
    depends_on: tuple[UUID, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task as it is kept.

    `attempt` counts its runs and fences them: only the newest may write. `lost_leases` counts the runs whose worker
    died. `error` is also the reason of a cancellation, `cancel_reason` that of one that is asked for.
    """

    task_id: UUID
    agent_id: str
    session_id: str
    spec: TaskSpec
    depends_on: tuple[UUID, ...]
    status: TaskStatus
    attempt: int
    lost_leases: int
    worker: str | None
    progress: float
    note: str | None
    result: JsonValue
    error: str | None
    cancel_reason: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    def to_document(self) -> dict[str, Any]:
        """Return it as JSON, for `apc task` and user interfaces."""
        spec = self.spec
        return {
            "task_id": str(self.task_id),
            "status": self.status.value,
            "action": spec.action,
            "action_id": spec.action_id,
            "type": spec.type.value,
            "params": dict(spec.params),
            "display": spec.display,
            "agent_id": self.agent_id,
            "session_id": self.session_id,
            "depends_on": [str(task_id) for task_id in self.depends_on],
            "progress": self.progress,
            "note": self.note,
            "result": self.result,
            "error": self.error,
            "cancel_reason": self.cancel_reason,
            "attempt": self.attempt,
            "lost_leases": self.lost_leases,
            "worker": self.worker,
            "created_at": self.created_at,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
        }

    def event(self) -> dict[str, JsonValue]:
        """Return what is announced of it, as metadata.task. Its result is not: it is read by task_id."""
        document: dict[str, JsonValue] = {
            "task_id": str(self.task_id),
            "action_id": self.spec.action_id,
            "action": self.spec.action,
            "status": self.status.value,
            "attempt": self.attempt,
            "progress": self.progress,
        }
        return document | {
            name: value for name, value in (("note", self.note), ("error", self.error)) if value is not None
        }


@dataclass(frozen=True, slots=True)
class Claim:
    """A task that a worker may run until its lease ends; `results` are those of the tasks that it awaits."""

    task: Task
    results: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """Something that is to be announced. It has its packet_id from the start: announced twice, it counts once."""

    task_id: UUID
    number: int
    packet_id: UUID
    session_id: str
    spec: TaskSpec
    document: dict[str, JsonValue]


# Reasons that the store itself gives.


def not_succeeded(needed: Task) -> str:
    """Return why a task that depends on this one is cancelled."""
    how = "failed" if needed.status is TaskStatus.FAILED else "was cancelled"
    return f"it needs {needed.spec.action_id}, which {how}: {needed.error}"


def given_up(lost_leases: int) -> str:
    """Return why a task is not tried again."""
    return f"its worker died {lost_leases} times while it ran: it may be what kills it"


MAX_LISTED = 1_000
"""Tasks of one list, whatever its limit."""


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

    async def with_work(self, agent_ids: Collection[str]) -> Collection[str]:
        """Return the agents among these for which somebody may have to do something.

        They have a task that waits for a worker, has lost its own or is to be cancelled, or an event to announce.
        """
        ...

    async def announced(self, task_id: UUID, number: int) -> None:
        """Record that the event was announced."""
        ...

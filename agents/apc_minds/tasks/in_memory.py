"""Tasks that end with the process: for tests and for workers without a database."""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from apc_agents.task_port import (
    ENDED,
    MAX_LISTED,
    MAX_LOST_LEASES,
    PROGRESS_STEP,
    Claim,
    Effect,
    MakeEffect,
    News,
    NewTask,
    Task,
    TaskEvent,
    TaskStatus,
    given_up,
    not_succeeded,
)
from apc_contracts.identity.ids import new_packet_id
from apc_minds.tools import TaskLost, TaskUnknown


@dataclass(slots=True)
class _TaskRow:
    task: Task
    lease_until: datetime | None = None
    told_progress: float = 0.0
    effects: dict[str, JsonValue] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_waiting(self, now: datetime) -> bool:
        """Return whether the task waits for a worker, has lost its own, or is to be cancelled."""
        if self.task.status is not TaskStatus.RUNNING:
            return self.task.status is TaskStatus.PENDING
        return self.task.cancel_reason is not None or (self.lease_until is not None and self.lease_until < now)


class InMemoryTaskStore:
    """A TaskStore in memory."""

    def __init__(self) -> None:
        self.news = News()
        self._rows: dict[UUID, _TaskRow] = {}
        self._events: list[TaskEvent] = []
        self._counts: dict[UUID, int] = {}

    async def add(self, task: NewTask) -> Task:
        """Keep a task."""
        if task.task_id not in self._rows:
            kept = Task(
                task_id=task.task_id,
                agent_id=task.agent_id,
                session_id=task.session_id,
                spec=task.spec,
                depends_on=task.depends_on,
                status=TaskStatus.PENDING,
                attempt=0,
                lost_leases=0,
                worker=None,
                progress=0.0,
                note=None,
                result=None,
                error=None,
                cancel_reason=None,
                created_at=datetime.now(UTC),
                started_at=None,
                finished_at=None,
            )
            self._rows[task.task_id] = _TaskRow(kept)
            self._announce(kept)
            await self.news.tell()
        return self._rows[task.task_id].task

    async def get(self, task_id: UUID) -> Task:
        """Return the task."""
        return self._row(task_id).task

    async def list(
        self,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        statuses: Collection[TaskStatus] | None = None,
        limit: int = 100,
    ) -> Sequence[Task]:
        """Return the newest tasks."""
        tasks = [
            row.task
            for row in reversed(self._rows.values())
            if agent_id in (None, row.task.agent_id)
            and session_id in (None, row.task.session_id)
            and (statuses is None or row.task.status in statuses)
        ]
        return tasks[: min(limit, MAX_LISTED)]

    async def claim(self, agent_id: str, worker: str, lease: timedelta) -> Claim | None:
        """Return the oldest that can run."""
        while self._sweep(agent_id):
            await self.news.tell()
        now = datetime.now(UTC)
        for row in self._rows.values():
            task = row.task
            if task.agent_id != agent_id or not self._can_run(row, now):
                continue
            row.lease_until = now + lease
            lost = task.lost_leases + (task.status is TaskStatus.RUNNING)
            self._change(
                row,
                status=TaskStatus.RUNNING,
                attempt=task.attempt + 1,
                lost_leases=lost,
                worker=worker,
                started_at=task.started_at or now,
            )
            await self.news.tell()
            awaited = {name: self._rows[task_id].task.result for name, task_id in task.spec.awaited.items()}
            return Claim(row.task, awaited)
        return None

    async def renew(self, task_id: UUID, attempt: int, lease: timedelta) -> str | None:
        """Lengthen the lease."""
        row = self._held(task_id, attempt)
        row.lease_until = datetime.now(UTC) + lease
        return row.task.cancel_reason

    async def progress(self, task_id: UUID, attempt: int, fraction: float, note: str | None) -> None:
        """Keep how far it is."""
        row = self._held(task_id, attempt)
        row.task = replace(row.task, progress=fraction, note=note)
        if fraction >= row.told_progress + PROGRESS_STEP:
            row.told_progress = fraction
            self._announce(row.task)
            await self.news.tell()

    async def finish(
        self, task_id: UUID, attempt: int, status: TaskStatus, *, result: JsonValue = None, error: str | None = None
    ) -> None:
        """Keep how it ended."""
        row = self._held(task_id, attempt)
        done = {"progress": 1.0} if status is TaskStatus.SUCCEEDED else {}
        self._end(row, status, error, result=result, **done)
        await self.news.tell()

    async def release(self, task_id: UUID, attempt: int) -> None:
        """Make it PENDING again."""
        try:
            row = self._held(task_id, attempt)
        except TaskLost:
            return
        row.lease_until = None
        self._change(row, status=TaskStatus.PENDING, worker=None)
        await self.news.tell()

    async def once(self, task_id: UUID, attempt: int, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect once."""
        row = self._held(task_id, attempt)
        async with row.lock:
            if name not in row.effects:
                row.effects[name] = await make(Effect(f"{task_id}/{name}"))
        return row.effects[name]

    async def cancel(self, task_id: UUID, reason: str) -> Task:
        """Cancel it."""
        row = self._row(task_id)
        if row.task.status is TaskStatus.PENDING or self._is_abandoned(row, datetime.now(UTC)):
            self._end(row, TaskStatus.CANCELLED, reason)
        elif row.task.status is TaskStatus.RUNNING:
            row.task = replace(row.task, cancel_reason=reason)
        await self.news.tell()
        return row.task

    async def purge(self, before: datetime, agent_id: str | None = None) -> int:
        """Delete what ended before this moment."""
        open_rows = [row.task for row in self._rows.values() if row.task.status not in ENDED]
        kept = {needed for task in open_rows for needed in task.depends_on} | {one.task_id for one in self._events}
        gone = [
            task_id
            for task_id, row in self._rows.items()
            if row.task.finished_at is not None
            and row.task.finished_at < before
            and agent_id in (None, row.task.agent_id)
            and task_id not in kept
        ]
        for task_id in gone:
            del self._rows[task_id], self._counts[task_id]
        return len(gone)

    async def unannounced(self, agent_id: str, limit: int = 100) -> Sequence[TaskEvent]:
        """Return the events that are not announced yet."""
        return [event for event in self._events if self._rows[event.task_id].task.agent_id == agent_id][:limit]

    async def with_work(self, agent_ids: Collection[str]) -> Collection[str]:
        """Return those for which somebody may have to do something."""
        now = datetime.now(UTC)
        tasks = [row.task for row in self._rows.values() if row.is_waiting(now)]
        tasks += [self._rows[event.task_id].task for event in self._events]
        return {task.agent_id for task in tasks}.intersection(agent_ids)

    async def announced(self, task_id: UUID, number: int) -> None:
        """Record that the event was announced."""
        self._events = [event for event in self._events if (event.task_id, event.number) != (task_id, number)]

    def _row(self, task_id: UUID) -> _TaskRow:
        row = self._rows.get(task_id)
        if row is None:
            raise TaskUnknown(str(task_id))
        return row

    def _held(self, task_id: UUID, attempt: int) -> _TaskRow:
        row = self._row(task_id)
        if row.task.status is not TaskStatus.RUNNING or row.task.attempt != attempt:
            raise TaskLost(str(task_id), attempt)
        return row

    def _is_abandoned(self, row: _TaskRow, now: datetime) -> bool:
        return row.task.status is TaskStatus.RUNNING and row.lease_until is not None and row.lease_until < now

    def _can_run(self, row: _TaskRow, now: datetime) -> bool:
        if row.task.status is not TaskStatus.PENDING and not self._is_abandoned(row, now):
            return False
        return all(self._rows[needed].task.status is TaskStatus.SUCCEEDED for needed in row.task.depends_on)

    def _sweep(self, agent_id: str) -> bool:
        """End what can run no more; says whether there was any."""
        now, swept = datetime.now(UTC), False
        for row in [row for row in self._rows.values() if row.task.agent_id == agent_id]:
            task = row.task
            if self._is_abandoned(row, now) and task.cancel_reason is not None:
                self._end(row, TaskStatus.CANCELLED, task.cancel_reason)
            elif self._is_abandoned(row, now) and task.lost_leases + 1 >= MAX_LOST_LEASES:
                self._end(row, TaskStatus.FAILED, given_up(MAX_LOST_LEASES))
            elif task.status is TaskStatus.PENDING and (failed := self._failed_need(task)) is not None:
                self._end(row, TaskStatus.CANCELLED, not_succeeded(failed))
            else:
                continue
            swept = True
        return swept

    def _failed_need(self, task: Task) -> Task | None:
        needs = (self._rows[needed].task for needed in task.depends_on)
        return next((need for need in needs if need.status in ENDED - {TaskStatus.SUCCEEDED}), None)

    def _end(self, row: _TaskRow, status: TaskStatus, error: str | None, **changes: Any) -> None:
        self._change(row, status=status, error=error, finished_at=datetime.now(UTC), **changes)

    def _change(self, row: _TaskRow, **changes: Any) -> None:
        row.task = replace(row.task, **changes)
        self._announce(row.task)

    def _announce(self, task: Task) -> None:
        number = self._counts[task.task_id] = self._counts.get(task.task_id, 0) + 1
        event = TaskEvent(task.task_id, number, new_packet_id(), task.session_id, task.spec, task.event())
        self._events.append(event)

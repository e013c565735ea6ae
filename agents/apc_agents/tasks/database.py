"""Tasks in tables apc_app.agent_tasks, agent_task_events and agent_task_effects."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy
from pydantic import JsonValue

from apc_agents.patience import patiently
from apc_agents.tasks import statements as sql
from apc_agents.tasks.model import (
    MAX_LOST_LEASES,
    PROGRESS_STEP,
    Claim,
    NewTask,
    Task,
    TaskEvent,
    TaskSpec,
    TaskStatus,
)
from apc_agents.tasks.store import MAX_LISTED, News
from apc_agents.tasks.wording import given_up, not_succeeded
from apc_agents.tools.call import Effect, MakeEffect
from apc_agents.tools.errors import TaskLost, TaskUnknown, ValueUnserialisable
from apc_agents.tools.result_values import json_value
from apc_contracts.identity.ids import new_packet_id

Connection = asyncpg.Connection | PoolConnectionProxy
ResultT = TypeVar("ResultT")


class PostgresTaskStore:
    """A TaskStore in Postgres. The pool stays the caller's.

    Args:
        pool: needs a connection more than effects that are made at a time.
        is_patient: wait for a database that is away, because without it no task may go on; else raise
            StateUnavailable.
    """

    def __init__(self, pool: asyncpg.Pool, *, is_patient: bool = True) -> None:
        self.news = News()
        self._pool = pool
        self._is_patient = is_patient

    async def add(self, task: NewTask) -> Task:
        """Keep a task. Raises ValueUnserialisable for what JSONB cannot store."""

        async def add(connection: Connection) -> Task:
            spec = task.spec.model_dump_json()
            row = await connection.fetchrow(
                sql.INSERT, task.task_id, task.agent_id, task.session_id, spec, list(task.depends_on)
            )
            if row is None:
                return await _kept(connection, task.task_id)
            return await _announced(connection, row)

        try:
            return await self._change(add)
        except asyncpg.DataError as error:
            raise ValueUnserialisable(f"action {task.spec.action_id}", f"cannot be stored: {error}") from error

    async def get(self, task_id: UUID) -> Task:
        """Return the task."""
        return await self._patiently(lambda: self._in_transaction(lambda connection: _kept(connection, task_id)))

    async def list(
        self,
        *,
        agent_id: str | None = None,
        session_id: str | None = None,
        statuses: Collection[TaskStatus] | None = None,
        limit: int = 100,
    ) -> Sequence[Task]:
        """Return the newest tasks."""
        names = None if statuses is None else [status.value for status in statuses]
        arguments = (agent_id, session_id, names, min(limit, MAX_LISTED))
        rows = await self._patiently(lambda: self._pool.fetch(sql.LIST, *arguments))
        return [_task(row) for row in rows]

    async def claim(self, agent_id: str, worker: str, lease: timedelta) -> Claim | None:
        """Return the oldest that can run."""

        async def claim(connection: Connection) -> Claim | None:
            await _sweep(connection, agent_id)
            row = await connection.fetchrow(sql.CLAIM, agent_id, worker, lease)
            if row is None:
                return None
            task = await _announced(connection, row)
            results = {}
            for name, task_id in task.spec.awaited.items():
                result = await connection.fetchval(sql.RESULT, task_id)
                results[name] = None if result is None else orjson.loads(result)
            return Claim(task, results)

        return await self._patiently(lambda: self._in_transaction(claim))

    async def renew(self, task_id: UUID, attempt: int, lease: timedelta) -> str | None:
        """Lengthen the lease."""
        row = await self._patiently(lambda: self._pool.fetchrow(sql.RENEW, task_id, attempt, lease))
        if row is None:
            raise TaskLost(str(task_id), attempt)
        reason: str | None = row["cancel_reason"]
        return reason

    async def progress(self, task_id: UUID, attempt: int, fraction: float, note: str | None) -> None:
        """Keep how far it is."""

        async def progress(connection: Connection) -> bool:
            row = _held(await connection.fetchrow(sql.PROGRESS, task_id, attempt, fraction, note), task_id, attempt)
            is_told: bool = fraction >= row["told_progress"] + PROGRESS_STEP
            if is_told:
                await connection.execute(sql.TOLD_PROGRESS, task_id, fraction)
                await _announced(connection, row)
            return is_told

        if await self._patiently(lambda: self._in_transaction(progress)):
            await self.news.tell()

    async def finish(
        self, task_id: UUID, attempt: int, status: TaskStatus, *, result: JsonValue = None, error: str | None = None
    ) -> None:
        """Keep how it ended."""
        written = orjson.dumps(result).decode() if status is TaskStatus.SUCCEEDED else None

        async def finish(connection: Connection) -> None:
            row = await connection.fetchrow(sql.FINISH, task_id, attempt, status.value, written, error)
            await _announced(connection, _held(row, task_id, attempt))

        await self._change(finish)

    async def release(self, task_id: UUID, attempt: int) -> None:
        """Make it PENDING again."""

        async def release(connection: Connection) -> None:
            row = await connection.fetchrow(sql.RELEASE, task_id, attempt)
            if row is not None:
                await _announced(connection, row)

        await self._change(release)

    async def once(self, task_id: UUID, attempt: int, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect once: `make` writes with the connection of the transaction that records it."""

        async def once(connection: Connection) -> JsonValue:
            _held(await connection.fetchrow(sql.HOLD, task_id, attempt), task_id, attempt)
            # Waits for another attempt that is making this effect right now.
            is_first = await connection.fetchval(sql.RECORD_EFFECT, task_id, name)
            if not is_first:
                kept = await connection.fetchval(sql.EFFECT, task_id, name)
                value: JsonValue = None if kept is None else orjson.loads(kept)
                return value
            try:
                made = await make(Effect(f"{task_id}/{name}", connection))
            except OSError as error:  # the maker's own, not the database's: no reason to try again
                raise _MakerFailed(error) from error
            value = json_value(made, f"effect {name}")
            await connection.execute(sql.KEEP_EFFECT, task_id, name, orjson.dumps(value).decode())
            return value

        try:
            return await self._patiently(lambda: self._in_transaction(once))
        except _MakerFailed as failed:
            raise failed.error from failed.error.__cause__

    async def cancel(self, task_id: UUID, reason: str) -> Task:
        """Cancel it."""

        async def cancel(connection: Connection) -> Task:
            row = await connection.fetchrow(sql.CANCEL, task_id, reason)
            if row is not None:
                return await _announced(connection, row)
            row = await connection.fetchrow(sql.ASK_TO_CANCEL, task_id, reason)
            return await _kept(connection, task_id) if row is None else _task(row)

        return await self._change(cancel)

    async def purge(self, before: datetime, agent_id: str | None = None) -> int:
        """Delete what ended before this moment: one statement."""
        done = await self._patiently(lambda: self._pool.execute(sql.PURGE, before, agent_id))
        return int(done.rpartition(" ")[2])

    async def unannounced(self, agent_id: str, limit: int = 100) -> Sequence[TaskEvent]:
        """Return the events that are not announced yet."""
        rows = await self._patiently(lambda: self._pool.fetch(sql.UNANNOUNCED, agent_id, limit))
        return [
            TaskEvent(
                row["task_id"],
                row["number"],
                row["packet_id"],
                row["session_id"],
                TaskSpec.model_validate_json(row["spec"]),
                orjson.loads(row["document"]),
            )
            for row in rows
        ]

    async def announced(self, task_id: UUID, number: int) -> None:
        """Record that the event was announced."""
        await self._patiently(lambda: self._pool.execute(sql.ANNOUNCED, task_id, number))

    async def _change(self, change: Callable[[Connection], Awaitable[ResultT]]) -> ResultT:
        changed = await self._patiently(lambda: self._in_transaction(change))
        await self.news.tell()
        return changed

    async def _in_transaction(self, work: Callable[[Connection], Awaitable[ResultT]]) -> ResultT:
        async with self._pool.acquire() as connection, connection.transaction():
            return await work(connection)

    async def _patiently(self, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(action, "task store", is_patient=self._is_patient)


class _MakerFailed(Exception):
    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


async def _sweep(connection: Connection, agent_id: str) -> None:
    """End what can run no more: again and again, because the end of one task ends those that need it."""
    # Two workers that sweep at once would lock the same rows in different orders.
    await connection.execute(sql.ONE_AT_A_TIME, agent_id)
    for row in await connection.fetch(sql.END_ABANDONED, agent_id, MAX_LOST_LEASES, given_up(MAX_LOST_LEASES)):
        await _announced(connection, row)
    while ended := await connection.fetch(sql.FAILED_NEEDS, agent_id):
        for found in ended:
            reason = not_succeeded(await _kept(connection, found["needed"]))
            cancelled = await connection.fetchrow(sql.CANCEL, found["task_id"], reason)
            if cancelled is not None:
                await _announced(connection, cancelled)


async def _announced(connection: Connection, row: asyncpg.Record) -> Task:
    """Return the task of a row that has changed, with the event that says so."""
    task = _task(row)
    await connection.execute(sql.ADD_EVENT, task.task_id, new_packet_id(), orjson.dumps(task.event()).decode())
    return task


async def _kept(connection: Connection, task_id: UUID) -> Task:
    row = await connection.fetchrow(sql.GET, task_id)
    if row is None:
        raise TaskUnknown(str(task_id))
    return _task(row)


def _held(row: asyncpg.Record | None, task_id: UUID, attempt: int) -> asyncpg.Record:
    if row is None:
        raise TaskLost(str(task_id), attempt)
    return row


def _task(row: asyncpg.Record) -> Task:
    return Task(
        task_id=row["task_id"],
        agent_id=row["agent_id"],
        session_id=row["session_id"],
        spec=TaskSpec.model_validate_json(row["spec"]),
        depends_on=tuple(row["depends_on"]),
        status=TaskStatus(row["status"]),
        attempt=row["attempt"],
        lost_leases=row["lost_leases"],
        worker=row["worker"],
        progress=row["progress"],
        note=row["note"],
        result=None if row["result"] is None else orjson.loads(row["result"]),
        error=row["error"],
        cancel_reason=row["cancel_reason"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
    )

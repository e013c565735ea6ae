"""The SQL of PostgresTaskStore. Where a status changes, the row is locked until its event is written with it."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy
from pydantic import JsonValue

from apc_agents.errors import ValueUnserialisable
from apc_agents.json_values import json_form
from apc_agents.patience import patiently
from apc_agents.task_port import (
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
    TaskSpec,
    TaskStatus,
    given_up,
    not_succeeded,
)
from apc_contracts.identity.ids import new_packet_id
from apc_minds.tools import TaskAmbiguous, TaskLost, TaskUnknown

# An id is one of an agent: another may have a task of the same id. $2 is the agent, NULL for whichever it is.
_TASK = "task_id = $1 AND ($2::text IS NULL OR agent_id = $2)"
_RUN = f"{_TASK} AND attempt = $3 AND status = 'RUNNING'"

GET = f"SELECT * FROM apc_app.agent_tasks WHERE {_TASK}"

LIST = """
SELECT * FROM apc_app.agent_tasks
WHERE ($1::text IS NULL OR agent_id = $1) AND ($2::text IS NULL OR session_id = $2)
  AND ($3::text[] IS NULL OR status = ANY($3))
ORDER BY created_at DESC, task_id DESC LIMIT $4
"""

INSERT = """
INSERT INTO apc_app.agent_tasks (task_id, agent_id, session_id, spec, depends_on)
VALUES ($1, $2, $3, $4::text::jsonb, $5) ON CONFLICT (task_id, agent_id) DO NOTHING RETURNING *
"""

# NO KEY: an attempt that makes an effect, or a row that refers to the task, must not hide it.
CLAIM = """
WITH next AS (
    SELECT task_id FROM apc_app.agent_tasks AS task
    WHERE agent_id = $1
      AND (status = 'PENDING' OR (status = 'RUNNING' AND lease_until < clock_timestamp()))
      AND NOT EXISTS (
          SELECT FROM apc_app.agent_tasks AS needed
          WHERE needed.task_id = ANY(task.depends_on) AND needed.agent_id = $1 AND needed.status <> 'SUCCEEDED'
      )
    ORDER BY created_at, task_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE apc_app.agent_tasks AS task
SET status = 'RUNNING', attempt = attempt + 1, lost_leases = lost_leases + (status = 'RUNNING')::int, worker = $2,
    lease_until = clock_timestamp() + $3::interval, started_at = coalesce(started_at, clock_timestamp())
FROM next WHERE task.task_id = next.task_id AND task.agent_id = $1 RETURNING task.*
"""

RESULT = "SELECT result FROM apc_app.agent_tasks WHERE task_id = $1 AND agent_id = $2"

RENEW = f"""
UPDATE apc_app.agent_tasks SET lease_until = clock_timestamp() + $4::interval WHERE {_RUN} RETURNING cancel_reason
"""

PROGRESS = f"UPDATE apc_app.agent_tasks SET progress = $4, note = $5 WHERE {_RUN} RETURNING *"

TOLD_PROGRESS = "UPDATE apc_app.agent_tasks SET told_progress = $3 WHERE task_id = $1 AND agent_id = $2"

FINISH = f"""
UPDATE apc_app.agent_tasks
SET status = $4, result = $5::text::jsonb, error = $6, finished_at = clock_timestamp(), lease_until = NULL,
    progress = CASE WHEN $4 = 'SUCCEEDED' THEN 1 ELSE progress END
WHERE {_RUN} RETURNING *
"""

RELEASE = f"""
UPDATE apc_app.agent_tasks SET status = 'PENDING', worker = NULL, lease_until = NULL WHERE {_RUN} RETURNING *
"""

# A key share lock lets the lease be renewed meanwhile; that the effect is made once is the primary key's doing.
HOLD = f"SELECT * FROM apc_app.agent_tasks WHERE {_RUN} FOR KEY SHARE"

RECORD_EFFECT = """
INSERT INTO apc_app.agent_task_effects (task_id, agent_id, name) VALUES ($1, $2, $3)
ON CONFLICT (task_id, agent_id, name) DO NOTHING RETURNING true
"""

_EFFECT = "task_id = $1 AND agent_id = $2 AND name = $3"

KEEP_EFFECT = f"UPDATE apc_app.agent_task_effects SET value = $4::text::jsonb WHERE {_EFFECT}"

EFFECT = f"SELECT value FROM apc_app.agent_task_effects WHERE {_EFFECT}"

# At once only when no worker has it: PENDING, or the lease of a worker that died.
CANCEL = f"""
UPDATE apc_app.agent_tasks
SET status = 'CANCELLED', error = $3, finished_at = clock_timestamp(), lease_until = NULL
WHERE {_TASK} AND (status = 'PENDING' OR (status = 'RUNNING' AND lease_until < clock_timestamp()))
RETURNING *
"""

ASK_TO_CANCEL = f"""
UPDATE apc_app.agent_tasks SET cancel_reason = coalesce(cancel_reason, $3)
WHERE {_TASK} AND status = 'RUNNING' RETURNING *
"""

# Of two workers that sweep at once, each passes over the rows that the other one ends: they would lock them in
# different orders. An advisory lock would do as well, but any login can take one by its name.
END_ABANDONED = """
WITH abandoned AS (
    SELECT task_id FROM apc_app.agent_tasks
    WHERE agent_id = $1 AND status = 'RUNNING' AND lease_until < clock_timestamp()
      AND (cancel_reason IS NOT NULL OR lost_leases + 1 >= $2)
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE apc_app.agent_tasks AS task
SET status = CASE WHEN cancel_reason IS NULL THEN 'FAILED' ELSE 'CANCELLED' END, error = coalesce(cancel_reason, $3),
    finished_at = clock_timestamp(), lease_until = NULL
FROM abandoned WHERE task.task_id = abandoned.task_id AND task.agent_id = $1
RETURNING task.*
"""

FAILED_NEEDS = """
SELECT task.task_id, (
    SELECT needed.task_id FROM apc_app.agent_tasks AS needed
    WHERE needed.task_id = ANY(task.depends_on) AND needed.agent_id = $1 AND needed.status IN ('FAILED', 'CANCELLED')
    ORDER BY array_position(task.depends_on, needed.task_id) LIMIT 1
) AS needed
FROM apc_app.agent_tasks AS task
WHERE task.agent_id = $1 AND task.status = 'PENDING' AND EXISTS (
    SELECT FROM apc_app.agent_tasks AS needed
    WHERE needed.task_id = ANY(task.depends_on) AND needed.agent_id = $1 AND needed.status IN ('FAILED', 'CANCELLED')
)
FOR NO KEY UPDATE OF task SKIP LOCKED
"""

ADD_EVENT = """
INSERT INTO apc_app.agent_task_events (task_id, agent_id, number, packet_id, document)
SELECT $1, $2, coalesce(max(number), 0) + 1, $3, $4::text::jsonb
FROM apc_app.agent_task_events WHERE task_id = $1 AND agent_id = $2
"""

# The right to DELETE is that to lock the table: a trigger of the table has it, and removes what is marked.
PURGE = """
UPDATE apc_app.agent_tasks AS task SET is_removed = true
WHERE finished_at < $1 AND ($2::text IS NULL OR agent_id = $2)
  AND NOT EXISTS (
      SELECT FROM apc_app.agent_tasks AS waiting
      WHERE waiting.agent_id = task.agent_id AND waiting.status IN ('PENDING', 'RUNNING')
        AND task.task_id = ANY(waiting.depends_on)
  )
  AND NOT EXISTS (
      SELECT FROM apc_app.agent_task_events AS event
      WHERE event.task_id = task.task_id AND event.agent_id = task.agent_id AND event.announced_at IS NULL
  )
"""

UNANNOUNCED = """
SELECT event.task_id, event.number, event.packet_id, event.document, task.session_id, task.spec
FROM apc_app.agent_task_events AS event JOIN apc_app.agent_tasks AS task USING (task_id, agent_id)
WHERE event.announced_at IS NULL AND task.agent_id = $1
ORDER BY event.made_at, event.task_id, event.number LIMIT $2
"""

WITH_WORK = """
SELECT agent_id FROM apc_app.agent_tasks
WHERE agent_id = ANY($1::text[])
  AND (status = 'PENDING' OR (status = 'RUNNING' AND (lease_until < clock_timestamp() OR cancel_reason IS NOT NULL)))
UNION SELECT agent_id FROM apc_app.agent_task_events WHERE announced_at IS NULL AND agent_id = ANY($1::text[])
"""

ANNOUNCED = """
UPDATE apc_app.agent_task_events SET announced_at = clock_timestamp()
WHERE task_id = $1 AND ($2::text IS NULL OR agent_id = $2) AND number = $3
"""


# Tasks in tables apc_app.agent_tasks, agent_task_events and agent_task_effects.

Connection = asyncpg.Connection | PoolConnectionProxy
ResultT = TypeVar("ResultT")


class PostgresTaskStore:
    """A TaskStore in Postgres. The pool stays the caller's.

    Args:
        pool: needs a connection more than effects that are made at a time.
        agent_id: whose tasks the ids name; None = those that the login sees, which may be of several agents.
        is_patient: wait for a database that is away, because without it no task may go on; else raise
            StateUnavailable.
    """

    def __init__(self, pool: asyncpg.Pool, agent_id: str | None = None, *, is_patient: bool = True) -> None:
        self.news = News()
        self._pool = pool
        self._agent = agent_id
        self._is_patient = is_patient

    async def add(self, task: NewTask) -> Task:
        """Keep a task. Raises ValueUnserialisable for what JSONB cannot store."""

        async def add(connection: Connection) -> Task:
            spec = task.spec.model_dump_json()
            row = await connection.fetchrow(
                INSERT, task.task_id, task.agent_id, task.session_id, spec, list(task.depends_on)
            )
            if row is None:
                return await _kept(connection, task.task_id, task.agent_id)
            return await _announced(connection, row)

        try:
            return await self._change(add)
        except asyncpg.DataError as error:
            raise ValueUnserialisable(f"action {task.spec.action_id}", f"cannot be stored: {error}") from error

    async def get(self, task_id: UUID) -> Task:
        """Return the task."""
        return await self._patiently(
            lambda: self._in_transaction(lambda connection: _kept(connection, task_id, self._agent))
        )

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
        rows = await self._patiently(lambda: self._pool.fetch(LIST, *arguments))
        return [_task(row) for row in rows]

    async def claim(self, agent_id: str, worker: str, lease: timedelta) -> Claim | None:
        """Return the oldest that can run."""

        async def claim(connection: Connection) -> Claim | None:
            await _sweep(connection, agent_id)
            row = await connection.fetchrow(CLAIM, agent_id, worker, lease)
            if row is None:
                return None
            task = await _announced(connection, row)
            results = {}
            for name, task_id in task.spec.awaited.items():
                result = await connection.fetchval(RESULT, task_id, agent_id)
                results[name] = None if result is None else orjson.loads(result)
            return Claim(task, results)

        return await self._patiently(lambda: self._in_transaction(claim))

    async def renew(self, task_id: UUID, attempt: int, lease: timedelta) -> str | None:
        """Lengthen the lease."""
        row = await self._patiently(lambda: self._pool.fetchrow(RENEW, task_id, self._agent, attempt, lease))
        if row is None:
            raise TaskLost(str(task_id), attempt)
        reason: str | None = row["cancel_reason"]
        return reason

    async def progress(self, task_id: UUID, attempt: int, fraction: float, note: str | None) -> None:
        """Keep how far it is."""

        async def progress(connection: Connection) -> bool:
            found = await connection.fetchrow(PROGRESS, task_id, self._agent, attempt, fraction, note)
            row = _held(found, task_id, attempt)
            is_told: bool = fraction >= row["told_progress"] + PROGRESS_STEP
            if is_told:
                await connection.execute(TOLD_PROGRESS, task_id, row["agent_id"], fraction)
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
            row = await connection.fetchrow(FINISH, task_id, self._agent, attempt, status.value, written, error)
            await _announced(connection, _held(row, task_id, attempt))

        await self._change(finish)

    async def release(self, task_id: UUID, attempt: int) -> None:
        """Make it PENDING again."""

        async def release(connection: Connection) -> None:
            row = await connection.fetchrow(RELEASE, task_id, self._agent, attempt)
            if row is not None:
                await _announced(connection, row)

        await self._change(release)

    async def once(self, task_id: UUID, attempt: int, name: str, make: MakeEffect) -> JsonValue:
        """Make an effect once: `make` writes with the connection of the transaction that records it."""

        async def once(connection: Connection) -> JsonValue:
            found = await connection.fetchrow(HOLD, task_id, self._agent, attempt)
            place = (task_id, _held(found, task_id, attempt)["agent_id"], name)
            # Waits for another attempt that is making this effect right now.
            is_first = await connection.fetchval(RECORD_EFFECT, *place)
            if not is_first:
                kept = await connection.fetchval(EFFECT, *place)
                value: JsonValue = None if kept is None else orjson.loads(kept)
                return value
            try:
                made = await make(Effect(f"{task_id}/{name}", connection))
            except OSError as error:  # the maker's own, not the database's: no reason to try again
                raise _MakerFailed(error) from error
            value = json_form(made, f"effect {name}")
            await connection.execute(KEEP_EFFECT, *place, orjson.dumps(value).decode())
            return value

        try:
            return await self._patiently(lambda: self._in_transaction(once))
        except _MakerFailed as failed:
            raise failed.error from failed.error.__cause__

    async def cancel(self, task_id: UUID, reason: str) -> Task:
        """Cancel it."""

        async def cancel(connection: Connection) -> Task:
            row = await connection.fetchrow(CANCEL, task_id, self._agent, reason)
            if row is not None:
                return await _announced(connection, row)
            row = await connection.fetchrow(ASK_TO_CANCEL, task_id, self._agent, reason)
            return await _kept(connection, task_id, self._agent) if row is None else _task(row)

        return await self._change(cancel)

    async def purge(self, before: datetime, agent_id: str | None = None) -> int:
        """Delete what ended before this moment: one statement."""
        done = await self._patiently(lambda: self._pool.execute(PURGE, before, agent_id))
        return int(done.rpartition(" ")[2])

    async def unannounced(self, agent_id: str, limit: int = 100) -> Sequence[TaskEvent]:
        """Return the events that are not announced yet."""
        rows = await self._patiently(lambda: self._pool.fetch(UNANNOUNCED, agent_id, limit))
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

    async def with_work(self, agent_ids: Collection[str]) -> Collection[str]:
        """Return those for which somebody may have to do something."""
        rows = await self._patiently(lambda: self._pool.fetch(WITH_WORK, list(agent_ids)))
        return {row["agent_id"] for row in rows}

    async def announced(self, task_id: UUID, number: int) -> None:
        """Record that the event was announced."""
        await self._patiently(lambda: self._pool.execute(ANNOUNCED, task_id, self._agent, number))

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
    for row in await connection.fetch(END_ABANDONED, agent_id, MAX_LOST_LEASES, given_up(MAX_LOST_LEASES)):
        await _announced(connection, row)
    while ended := await connection.fetch(FAILED_NEEDS, agent_id):
        for found in ended:
            reason = not_succeeded(await _kept(connection, found["needed"], agent_id))
            cancelled = await connection.fetchrow(CANCEL, found["task_id"], agent_id, reason)
            if cancelled is not None:
                await _announced(connection, cancelled)


async def _announced(connection: Connection, row: asyncpg.Record) -> Task:
    """Return the task of a row that has changed, with the event that says so."""
    task = _task(row)
    place = (task.task_id, task.agent_id)
    await connection.execute(ADD_EVENT, *place, new_packet_id(), orjson.dumps(task.event()).decode())
    return task


async def _kept(connection: Connection, task_id: UUID, agent_id: str | None) -> Task:
    rows = await connection.fetch(GET, task_id, agent_id)
    if not rows:
        raise TaskUnknown(str(task_id))
    if len(rows) > 1:
        raise TaskAmbiguous(str(task_id), sorted(row["agent_id"] for row in rows))
    return _task(rows[0])


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

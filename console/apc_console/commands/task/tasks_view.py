"""`apc task`: print durable tasks, cancel one, purge old ones."""

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

from apc_agents.tasks import ENDED, PostgresTaskStore, Task, TaskStatus
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import print_json, print_rows
from apc_console.output.terminal import echo
from apc_contracts.text import numbered

_SHOWN = ("task_id", "action", "status", "progress", "attempt", "agent_id", "session_id", "created_at", "error")


async def print_tasks(
    agent_id: str | None, session_id: str | None, statuses: Sequence[str] | None, *, limit: int, as_json: bool
) -> None:
    """Print the newest tasks. Raises InputUnusable for an unknown status."""
    known = None if not statuses else [_status(status) for status in statuses]
    async with _open_tasks() as store:
        tasks = await store.list(agent_id=agent_id, session_id=session_id, statuses=known, limit=limit)
    documents = [task.to_document() for task in tasks]
    if as_json or not sys.stdout.isatty():
        print_json(documents)
        return
    rows = [{name: document[name] for name in _SHOWN} for document in documents]
    print_rows(rows, title="tasks", as_json=False, empty="there is no such task")


async def print_task(task_id: str, *, as_json: bool) -> None:
    """Print a task. Raises InputUnusable for an invalid task_id, TaskUnknown."""
    async with _open_tasks() as store:
        _print(await store.get(_uuid(task_id)), as_json)


async def cancel_task(task_id: str, reason: str, *, as_json: bool) -> None:
    """Cancel a task, and print it. Raises InputUnusable when it has ended already, TaskUnknown."""
    async with _open_tasks() as store:
        before = await store.get(_uuid(task_id))
        if before.status in ENDED:
            raise InputUnusable(f"task {task_id} has ended already: {before.status}")
        _print(await store.cancel(before.task_id, reason), as_json)


async def purge_tasks(days: int, agent_id: str | None, *, as_json: bool) -> None:
    """Delete the tasks that ended more than `days` ago."""
    async with _open_tasks() as store:
        purged = await store.purge(datetime.now(UTC) - timedelta(days=days), agent_id)
    if as_json or not sys.stdout.isatty():
        print_json({"tasks": purged})
    else:
        echo(f"deleted {numbered(purged, 'task')}")


def _print(task: Task, as_json: bool) -> None:
    document = task.to_document()
    if as_json or not sys.stdout.isatty():
        print_json(document)
        return
    rows = [{"field": name, "value": value} for name, value in document.items() if value not in (None, [])]
    print_rows(rows, title=f"task {task.spec.action}", as_json=False, empty="")


@asynccontextmanager
async def _open_tasks() -> AsyncIterator[PostgresTaskStore]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.agent_tasks')") is None:
            raise InputUnusable("this database holds no tasks: run `apc migrate`")
        yield PostgresTaskStore(pool, is_patient=False)


def _uuid(task_id: str) -> UUID:
    try:
        return UUID(task_id)
    except ValueError as error:
        raise InputUnusable(f"{task_id!r} is no task_id: `apc task list` shows those there are") from error


def _status(text: str) -> TaskStatus:
    try:
        return TaskStatus(text.upper())
    except ValueError as error:
        raise InputUnusable(f"{text!r} is no status of a task: use one of {', '.join(TaskStatus)}") from error

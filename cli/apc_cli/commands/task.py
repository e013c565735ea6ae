"""`apc task`: print durable tasks, cancel one, purge old ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from apc_agents.task_port import ENDED, Task, TaskStatus
from apc_cli.commands.group import Commands, whole_session_id
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, print_json, print_rows, wants_json
from apc_cli.output.terminal import ask_whether, echo
from apc_cli.system.running import run_quietly
from apc_contracts.text import numbered
from apc_minds.tasks.postgres import PostgresTaskStore

_SHOWN = ("task_id", "action", "status", "progress", "attempt", "agent_id", "session_id", "created_at", "error")

_WEIGHT = ("task_id", "status", "action", "agent_id", "progress", "error", "created_at")


async def purge_tasks(days: int, agent_id: str | None, *, as_json: bool) -> None:
    """Delete the tasks that ended more than `days` ago."""
    async with _open_tasks() as store:
        purged = await store.purge(datetime.now(UTC) - timedelta(days=days), agent_id)
    if wants_json(as_json):
        print_json({"tasks": purged})
    else:
        echo(f"deleted {numbered(purged, 'task')}")


def _print(task: Task, as_json: bool) -> None:
    document = task.to_document()
    rows = [{"field": name, "value": value} for name, value in document.items() if value not in (None, [])]
    print_rows(rows, title=f"task {task.spec.action}", as_json=as_json, empty="", document=document)


@asynccontextmanager
async def _open_tasks(agent_id: str | None = None) -> AsyncIterator[PostgresTaskStore]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.agent_tasks')") is None:
            raise InputUnusable("this database holds no tasks: run `apc migrate`")
        yield PostgresTaskStore(pool, agent_id, is_patient=False)


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


# `apc task`: list, show, cancel and purge the asynchronous actions of agents.

app = Commands(help="Durable tasks of agents.")

IsSure = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK_ID", help="The task, as `apc task list` shows it.")]
OfAgent = Annotated[str | None, typer.Option("--agent", help="Whose task it is, where several agents have this id.")]


@app.command("list")
async def list_(
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only tasks of this agent.")] = None,
    session_id: Annotated[
        str | None, typer.Option("--session", help="Only tasks of this session.", parser=whole_session_id)
    ] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks in this status: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many tasks.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print tasks, newest first: action, status, progress, number of attempts."""
    known = None if not status else [_status(one) for one in status]
    async with _open_tasks() as store:
        tasks = await store.list(agent_id=agent_id, session_id=session_id, statuses=known, limit=limit)
    documents = [task.to_document() for task in tasks]
    rows = [{name: document[name] for name in _SHOWN} for document in documents]
    empty = "there is no such task"
    print_rows(rows, title="tasks", as_json=as_json, empty=empty, weight=_WEIGHT, document=documents)


@app.command()
async def show(task_id: TaskId, agent_id: OfAgent = None, as_json: AsJson = False) -> None:
    """Print a task with its params, its result or its error."""
    async with _open_tasks(agent_id) as store:
        _print(await store.get(_uuid(task_id)), as_json)


@app.command()
async def cancel(
    task_id: TaskId,
    reason: Annotated[str, typer.Option(help="The reason, which its agent is told.")] = "cancelled by an operator",
    agent_id: OfAgent = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a task: at once when no worker runs it, else by its worker within seconds."""
    async with _open_tasks(agent_id) as store:
        before = await store.get(_uuid(task_id))
        if before.status in ENDED:
            raise InputUnusable(f"task {task_id} has ended already: {before.status}")
        _print(await store.cancel(before.task_id, reason), as_json)


@app.command()
def purge(
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days since their end after which they are deleted.")],
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only tasks of this agent.")] = None,
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete tasks that ended this many days ago, with their results; run it daily."""
    if not is_sure:
        ask_whether(f"Permanently delete the tasks that ended more than {days} days ago?")
    run_quietly(purge_tasks(days, agent_id, as_json=as_json))

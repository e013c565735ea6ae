"""`apc task`: list, show, cancel and purge the asynchronous actions of agents."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import ask_whether

app = typer.Typer(help="Durable tasks of agents.", no_args_is_help=True)

IsSure = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
TaskId = Annotated[str, typer.Argument(metavar="TASK_ID", help="The task, as `apc task list` shows it.")]


@app.command("list")
def list_(
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only tasks of this agent.")] = None,
    session_id: Annotated[str | None, typer.Option("--session", help="Only tasks of this session.")] = None,
    status: Annotated[
        list[str] | None,
        typer.Option(help="Only tasks in this status: PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many tasks.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print tasks, newest first: action, status, progress, number of attempts."""
    from apc_console.commands.task.tasks_view import print_tasks
    from apc_console.system.running import run_quietly

    run_quietly(print_tasks(agent_id, session_id, status, limit=limit, as_json=as_json))


@app.command()
def show(task_id: TaskId, as_json: AsJson = False) -> None:
    """Print a task with its params, its result or its error."""
    from apc_console.commands.task.tasks_view import print_task
    from apc_console.system.running import run_quietly

    run_quietly(print_task(task_id, as_json=as_json))


@app.command()
def cancel(
    task_id: TaskId,
    reason: Annotated[str, typer.Option(help="The reason, which its agent is told.")] = "cancelled by an operator",
    as_json: AsJson = False,
) -> None:
    """Cancel a task: at once when no worker runs it, else by its worker within seconds."""
    from apc_console.commands.task.tasks_view import cancel_task
    from apc_console.system.running import run_quietly

    run_quietly(cancel_task(task_id, reason, as_json=as_json))


@app.command()
def purge(
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days since their end after which they are deleted.")],
    agent_id: Annotated[str | None, typer.Option("--agent", help="Only tasks of this agent.")] = None,
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete tasks that ended this many days ago, with their results; run it daily."""
    from apc_console.commands.task.tasks_view import purge_tasks
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Permanently delete the tasks that ended more than {days} days ago?")
    run_quietly(purge_tasks(days, agent_id, as_json=as_json))

"""`apc arbitration`: the candidates that the orchestrator compared, and the winners."""

from typing import Annotated

import typer

from apc_console.output.output import AsJson

app = typer.Typer(help="Live arbitrations of transfers and of candidates.", no_args_is_help=True)


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Option(help="Only of this run.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Only of this session.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many arbitrations.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print arbitrations, newest first: the winner, who was selected, and each candidate's score."""
    from apc_console.commands.arbitration.arbitrations_view import print_arbitrations
    from apc_console.system.running import run_quietly

    run_quietly(print_arbitrations(run_id=run_id, session_id=session_id, task_id=task_id, limit=limit, as_json=as_json))

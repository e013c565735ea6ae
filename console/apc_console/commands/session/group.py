"""`apc session`: list, show and explain sessions; start, follow, pause, resume and stop them."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import echo
from apc_contracts.vocabulary import Signal

app = typer.Typer(help="List, show, explain, start, follow, pause, resume and stop sessions.", no_args_is_help=True)

SessionId = Annotated[str, typer.Argument(metavar="SESSION_ID", help="The session.")]
Sender = Annotated[
    str | None,
    typer.Option(
        "--as", metavar="AGENT", help="The agent that sends it; default: the first operator of this broker user."
    ),
]
Timeout = Annotated[float | None, typer.Option(min=0, help="Seconds to wait; default until the end.")]
Reason = Annotated[str | None, typer.Option(help="The reason, which the log keeps.")]


@app.command("list")
def list_(
    run_id: Annotated[str | None, typer.Option(help="Only this run.")] = None,
    running: Annotated[bool, typer.Option("--running", help="Only sessions that have not ended.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many sessions.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Print sessions, the latest first: state, round, generation, what was spent, why one was halted."""
    from apc_console.commands.session.sessions_view import print_sessions
    from apc_console.system.running import run_quietly

    run_quietly(print_sessions(run_id, only_running=running, limit=limit, as_json=as_json))


@app.command()
def show(session_id: SessionId, as_json: AsJson = False) -> None:
    """Print a session: state, budgets and what is left of them, members, pending ACKs, deadlines, held packets."""
    from apc_console.commands.session.sessions_view import print_session
    from apc_console.system.running import run_quietly

    run_quietly(print_session(session_id, as_json=as_json))


@app.command()
def explain(session_id: SessionId, as_json: AsJson = False) -> None:
    """Say in words where a session stands, what it waits for, from whom, until when, and what would move it."""
    from apc_console.commands.session.explaining import print_explanation
    from apc_console.system.running import run_quietly

    run_quietly(print_explanation(session_id, as_json=as_json))


@app.command()
def start(
    what: Annotated[
        str,
        typer.Argument(metavar="MODULE:TEAM|SPEC", help="A team, or a spec as JSON; - reads it from standard input."),
    ],
    file: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="The team's input as JSON; - reads standard input.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Of a team: the same key and input lead to the same session.")] = None,
    session_id: Annotated[str | None, typer.Option(help="Of a spec: the id of the session; default a new one.")] = None,
    run_id: Annotated[str | None, typer.Option(help="Of a spec: the run; default the session's id.")] = None,
    task_id: Annotated[str | None, typer.Option(help="Of a spec: the task; default the first of task_ids.")] = None,
    sender: Sender = None,
    reason: Reason = None,
) -> None:
    """Open a session of a team with its input, or of a spec with SIGNAL START alone; print the session's id.

    A team's agents run already. Agents of a spec that are not registered are refused before it is sent.
    """
    from apc_console.commands.session.starting import StartForm, start_session, start_team
    from apc_console.system.running import run_quietly

    if file is not None:
        echo(run_quietly(start_team(what, file, key, sender)))
    else:
        echo(run_quietly(start_session(StartForm(Path(what), session_id, run_id, task_id, sender, reason))))


@app.command()
def wait(session_id: SessionId, timeout: Timeout = None) -> None:
    """Wait until a session has closed. Exits with 3 when it halted, with 5 when it goes on after --timeout."""
    from apc_console.commands.session.following import wait_for_end
    from apc_console.system.running import run_quietly

    echo(run_quietly(wait_for_end(session_id, timeout)))


@app.command()
def events(session_id: SessionId, as_json: AsJson = False) -> None:
    """Print each packet of a session as the log gets it, until the session has ended: verdict, way, content.

    At a terminal a line says what each packet contains. In JSON the content is typed data, or what a question, its
    answer or an ERROR says.
    """
    from apc_console.commands.session.following import print_events
    from apc_console.system.running import run_quietly

    run_quietly(print_events(session_id, as_json=as_json))


@app.command()
def result(session_id: SessionId, timeout: Timeout = None) -> None:
    """Wait until a session has closed and print its result as JSON. Exits as `apc session wait`."""
    from apc_console.commands.session.following import print_result
    from apc_console.system.running import run_quietly

    run_quietly(print_result(session_id, timeout))


@app.command()
def pause(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """Pause a session and its deadlines; packets that arrive meanwhile are held."""
    _send(session_id, Signal.PAUSE, sender, reason)


@app.command()
def resume(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """Resume a paused session; held packets are judged in their order of arrival."""
    _send(session_id, Signal.RESUME, sender, reason)


@app.command()
def stop(session_id: SessionId, sender: Sender = None, reason: Reason = None) -> None:
    """End a session permanently (HALTED)."""
    _send(session_id, Signal.STOP, sender, reason)


def _send(session_id: str, signal: Signal, sender: str | None, reason: str | None) -> None:
    from apc_console.commands.session.session_control import signal_session
    from apc_console.system.running import run_quietly

    state = run_quietly(signal_session(session_id, signal, sender, reason))
    echo(f"{signal} accepted: session {session_id} is {state}")

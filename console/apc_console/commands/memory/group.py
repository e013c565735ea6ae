"""`apc memory`: what agents keep of their users: list, show, export, erase, purge."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import ask_whether

app = typer.Typer(help="Conversations and states that agents keep.", no_args_is_help=True)

Owner = Annotated[
    str,
    typer.Option(help="Whose memory; others are not seen. Agents have apc, `apc chat --user NAME` has NAME."),
]
User = Annotated[str | None, typer.Option(help="The user; default: the owner.")]
IsSure = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@app.command("list")
def list_(
    owner: Owner = "apc",
    user: User = None,
    search: Annotated[
        str | None,
        typer.Option(help='Only what matches, best first: words, "a phrase", OR, -without, pum* for what begins so.'),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Most conversations to print.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Leave so many out.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a user's conversations, the last updated first; never their messages."""
    from apc_console.commands.memory.memory_view import print_conversations
    from apc_console.system.running import run_quietly

    run_quietly(print_conversations(owner, user or owner, search, limit=limit, offset=offset, as_json=as_json))


@app.command()
def show(
    session_id: Annotated[str, typer.Argument(metavar="SESSION_ID", help="The session.")],
    owner: Owner = "apc",
    agent: Annotated[
        str | None, typer.Option(help="Instead of the conversation what this agent keeps of the session, by key.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the conversation of a session, or what an agent keeps of it."""
    from apc_console.commands.memory.memory_view import print_conversation, print_states
    from apc_console.system.running import run_quietly

    if agent is None:
        run_quietly(print_conversation(owner, session_id, as_json=as_json))
    else:
        run_quietly(print_states(owner, session_id, agent, as_json=as_json))


@app.command()
def export(
    owner: Owner = "apc",
    user: User = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: the standard output.")] = None,
) -> None:
    """Write everything that is kept of a user: conversations, then states, a line of JSON each."""
    from apc_console.commands.memory.memory_view import export_user
    from apc_console.system.running import run_quietly

    run_quietly(export_user(owner, user or owner, out))


@app.command()
def erase(owner: Owner = "apc", user: User = None, is_sure: IsSure = False, as_json: AsJson = False) -> None:
    """Delete everything that `export` writes of a user, for good."""
    from apc_console.commands.memory.memory_view import erase_user
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Delete all that {owner!r} keeps of user {user or owner!r} for good?")
    run_quietly(erase_user(owner, user or owner, as_json=as_json))


@app.command()
def purge(
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Older than so many days since it was last written.")],
    owner: Owner = "apc",
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Delete what was not written for so many days, for good: run it daily, and memory keeps its size."""
    from apc_console.commands.memory.memory_view import purge_older
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Delete what {owner!r} has not written for {days} days for good?")
    run_quietly(purge_older(owner, days, as_json=as_json))

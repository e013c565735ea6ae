"""`apc memory`: list, show, export, erase and purge what agents store about users."""

from pathlib import Path
from typing import Annotated

import typer

from apc_console.output.output import AsJson
from apc_console.output.terminal import ask_whether

app = typer.Typer(help="Conversations and states that agents keep.", no_args_is_help=True)

Owner = Annotated[
    str,
    typer.Option(help="The owner of the memory: apc for agents, NAME for `apc chat --user NAME`."),
]
User = Annotated[str | None, typer.Option(help="The user; default: the owner.")]
IsSure = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.command("list")
def list_(
    owner: Owner = "apc",
    user: User = None,
    search: Annotated[
        str | None,
        typer.Option(help='Only what matches, best first: words, "a phrase", OR, -without, pum* for what begins so.'),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Print at most this many conversations.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="Skip this many.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print a user's conversations without their messages, last updated first."""
    from apc_console.commands.memory.memory_view import print_conversations
    from apc_console.system.running import run_quietly

    run_quietly(print_conversations(owner, user or owner, search, limit=limit, offset=offset, as_json=as_json))


@app.command()
def show(
    session_id: Annotated[str, typer.Argument(metavar="SESSION_ID", help="The session.")],
    owner: Owner = "apc",
    agent: Annotated[
        str | None,
        typer.Option(help="Show what this agent stores about the session, by key, instead of the conversation."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the conversation of a session, or what an agent stores about it."""
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
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")] = None,
) -> None:
    """Write everything stored about a user as JSON lines: conversations, then states."""
    from apc_console.commands.memory.memory_view import export_user
    from apc_console.system.running import run_quietly

    run_quietly(export_user(owner, user or owner, out))


@app.command()
def erase(owner: Owner = "apc", user: User = None, is_sure: IsSure = False, as_json: AsJson = False) -> None:
    """Permanently delete everything about a user that `export` writes."""
    from apc_console.commands.memory.memory_view import erase_user
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Permanently delete all that {owner!r} keeps of user {user or owner!r}?")
    run_quietly(erase_user(owner, user or owner, as_json=as_json))


@app.command()
def purge(
    days: Annotated[int, typer.Option(min=1, max=36_500, help="Days since the last write after which it is deleted.")],
    owner: Owner = "apc",
    is_sure: IsSure = False,
    as_json: AsJson = False,
) -> None:
    """Permanently delete what was not written for this many days; run it daily to bound the memory's size."""
    from apc_console.commands.memory.memory_view import purge_older
    from apc_console.system.running import run_quietly

    if not is_sure:
        ask_whether(f"Permanently delete what {owner!r} has not written for {days} days?")
    run_quietly(purge_older(owner, days, as_json=as_json))

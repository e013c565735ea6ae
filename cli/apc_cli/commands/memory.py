"""`apc memory`: show, export and delete what agents store."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from apc_agents.ports import MADE_BY
from apc_cli.commands.group import Commands, whole_session_id
from apc_cli.connections import open_log
from apc_cli.errors import InputUnusable
from apc_cli.output.output import AsJson, opened, print_json, print_rows, wants_json
from apc_cli.output.terminal import ask_whether, echo
from apc_cli.system.running import run_quietly
from apc_contracts.text import numbered
from apc_minds.memory import ConversationMessage, PostgresMemoryStore, Removed, UnknownSession

_LISTED = ("session_id", "last_updated", "message_count", "summary", "revision")
_FOUND = ("session_id", "last_updated", "message_count", "excerpt")


async def print_conversation(owner: str, session_id: str, *, as_json: bool) -> None:
    """Print one conversation. Raises UnknownSession."""
    async with _open_memory(owner) as memory:
        conversation = await memory.retrieve_conversation(session_id)
    if conversation is None:
        raise UnknownSession(session_id)
    document = {**conversation.to_document(), "revision": conversation.revision}
    rows = [_shown(message) for message in conversation.messages]
    print_rows(rows, title=f"conversation {session_id}", as_json=as_json, empty="it has no messages", document=document)


async def print_states(owner: str, session_id: str, agent_id: str, *, as_json: bool) -> None:
    """Print what an agent stores about a session. Raises InputUnusable when there is nothing."""
    async with _open_memory(owner) as memory:
        states = await memory.get_all_agent_states(agent_id, session_id)
    if not states:
        raise InputUnusable(f"{owner} keeps nothing of agent {agent_id!r} in session {session_id!r}: check their ids")
    rows = [{"key": key, "value": value} for key, value in states.items()]
    print_rows(rows, title=f"{agent_id} in {session_id}", as_json=as_json, empty="", document=states)


async def erase_user(owner: str, user: str, *, as_json: bool) -> None:
    """Delete what is stored about a user."""
    async with _open_memory(owner) as memory:
        _tell(await memory.erase_user(user), as_json)
    echo(
        "not reached: the log (`apc log erase`), tasks, artifacts, and the backups of the database "
        "(docs/reference/memory.md)",
        file=sys.stderr,
    )


async def purge_older(owner: str, days: int, *, as_json: bool) -> None:
    """Delete what an owner has not written for so many days."""
    async with _open_memory(owner) as memory:
        _tell(await memory.forget_before(datetime.now(UTC) - timedelta(days=days)), as_json)


def _tell(removed: Removed, as_json: bool) -> None:
    if wants_json(as_json):
        print_json({"conversations": removed.conversations, "agent_states": removed.agent_states})
    else:
        echo(f"deleted {removed.conversations} conversations and {removed.agent_states} states")


def _shown(message: ConversationMessage) -> dict[str, Any]:
    sender = message.metadata.get("sender_id", message.role)
    if MADE_BY in message.metadata:
        sender = f"{sender} (by login agent.{message.metadata[MADE_BY]})"
    return {"timestamp": message.timestamp, "sender": sender, "content": message.content}


@asynccontextmanager
async def _open_memory(owner: str) -> AsyncIterator[PostgresMemoryStore]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.conversation_history')") is None:
            raise InputUnusable("this database holds no memory of agents: run `apc migrate`")
        yield PostgresMemoryStore(pool, owner)


# `apc memory`: list, show, export, erase and purge what agents store about users.

app = Commands(help="Conversations and states that agents keep.")

Owner = Annotated[
    str,
    typer.Option(help="The owner of the memory: apc for agents, NAME for `apc chat --user NAME`."),
]
User = Annotated[str | None, typer.Option(help="The user; default: the owner.")]
IsSure = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


@app.command("list")
async def list_(
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
    whose = user or owner
    async with _open_memory(owner) as memory:
        if search is None:
            conversations = await memory.list_conversations_for_user(whose, limit, offset)
        else:
            conversations = await memory.search_conversations(whose, search, limit, offset)
    shown = _LISTED if search is None else _FOUND
    rows = [{name: one[name] for name in shown} for one in conversations]
    if any("made_by" in one for one in conversations):
        for row, one in zip(rows, conversations, strict=True):
            row["made_by"] = ", ".join(f"agent.{name}" for name in one.get("made_by", ()))
    empty = f"{owner} keeps none of user {whose}"
    title, weight = f"conversations of {whose}", ("session_id", "message_count", "last_updated", *shown)
    print_rows(rows, title=title, as_json=as_json, empty=empty, weight=weight, document=conversations)


@app.command()
async def show(
    session_id: Annotated[str, typer.Argument(metavar="SESSION_ID", help="The session.", parser=whole_session_id)],
    owner: Owner = "apc",
    agent: Annotated[
        str | None,
        typer.Option(help="Show what this agent stores about the session, by key, instead of the conversation."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the conversation of a session, or what an agent stores about it."""
    if agent is None:
        await print_conversation(owner, session_id, as_json=as_json)
    else:
        await print_states(owner, session_id, agent, as_json=as_json)


@app.command()
async def export(
    owner: Owner = "apc",
    user: User = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: standard output.")] = None,
) -> None:
    """Write everything stored about a user as JSON lines: conversations, then states."""
    count = 0
    async with _open_memory(owner) as memory:
        with opened(out) as file:
            async for record in memory.export_user(user or owner):
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
    echo(f"{numbered(count, 'record')} of user {user or owner}", file=sys.stderr)


@app.command()
def erase(owner: Owner = "apc", user: User = None, is_sure: IsSure = False, as_json: AsJson = False) -> None:
    """Permanently delete everything about a user that `export` writes."""
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
    if not is_sure:
        ask_whether(f"Permanently delete what {owner!r} has not written for {days} days?")
    run_quietly(purge_older(owner, days, as_json=as_json))

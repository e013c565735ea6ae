"""`apc memory`: show, export and delete what agents store."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from apc_agents.memory import ConversationMessage, DatabaseMemoryStore, Removed, UnknownSession
from apc_console.connections.database import open_log
from apc_console.errors import InputUnusable
from apc_console.output.output import opened, print_json, print_rows
from apc_console.output.terminal import echo
from apc_contracts.text import numbered

_LISTED = ("session_id", "last_updated", "message_count", "summary", "revision")
_FOUND = ("session_id", "last_updated", "message_count", "excerpt")


async def print_conversations(
    owner: str, user: str, search: str | None, *, limit: int, offset: int, as_json: bool
) -> None:
    """Print a user's conversations, or those that match every word of a search. Raises MemoryStoreError."""
    async with _open_memory(owner) as memory:
        if search is None:
            found = await memory.list_conversations_for_user(user, limit, offset)
        else:
            found = await memory.search_conversations(user, search, limit, offset)
    if as_json or not sys.stdout.isatty():
        print_json(found)
        return
    shown = _LISTED if search is None else _FOUND
    rows = [{name: one[name] for name in shown} for one in found]
    print_rows(rows, title=f"conversations of {user}", as_json=False, empty=f"{owner} keeps none of user {user}")


async def print_conversation(owner: str, session_id: str, *, as_json: bool) -> None:
    """Print one conversation. Raises UnknownSession."""
    async with _open_memory(owner) as memory:
        found = await memory.retrieve_conversation(session_id)
    if found is None:
        raise UnknownSession(session_id)
    if as_json or not sys.stdout.isatty():
        print_json({**found.to_document(), "revision": found.revision})
        return
    rows = [_shown(message) for message in found.messages]
    print_rows(rows, title=f"conversation {session_id}", as_json=False, empty="it has no messages")


async def print_states(owner: str, session_id: str, agent_id: str, *, as_json: bool) -> None:
    """Print what an agent stores about a session. Raises InputUnusable when there is nothing."""
    async with _open_memory(owner) as memory:
        states = await memory.get_all_agent_states(agent_id, session_id)
    if not states:
        raise InputUnusable(f"{owner} keeps nothing of agent {agent_id!r} in session {session_id!r}: check their ids")
    if as_json or not sys.stdout.isatty():
        print_json(states)
        return
    rows = [{"key": key, "value": value} for key, value in states.items()]
    print_rows(rows, title=f"{agent_id} in {session_id}", as_json=False, empty="")


async def export_user(owner: str, user: str, out: Path | None) -> None:
    """Write every record of a user as a line of JSON. Raises InputUnusable when the file cannot be written."""
    count = 0
    async with _open_memory(owner) as memory:
        with opened(out) as file:
            async for record in memory.export_user(user):
                file.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
                count += 1
    echo(f"{numbered(count, 'record')} of user {user}", file=sys.stderr)


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
    if as_json or not sys.stdout.isatty():
        print_json({"conversations": removed.conversations, "agent_states": removed.agent_states})
    else:
        echo(f"deleted {removed.conversations} conversations and {removed.agent_states} states")


def _shown(message: ConversationMessage) -> dict[str, Any]:
    sender = message.metadata.get("sender_id", message.role)
    return {"timestamp": message.timestamp, "sender": sender, "content": message.content}


@asynccontextmanager
async def _open_memory(owner: str) -> AsyncIterator[DatabaseMemoryStore]:
    async with open_log() as pool:
        if await pool.fetchval("SELECT to_regclass('apc_app.conversation_history')") is None:
            raise InputUnusable("this database holds no memory of agents: run `apc migrate`")
        yield DatabaseMemoryStore(pool, owner)

"""Adds what was said to the conversation of a session, in the transaction that saves the state it belongs to."""

import asyncpg

from apc_agents.memory.conversation import NewMessages
from apc_agents.memory.conversation_parts import ATTEMPTS, changing, lock_parts, part_of
from apc_agents.memory.statements import Connection, compare_and_set_state, owned, put_state, read_states


async def append_messages(connection: Connection, owner: str, new: NewMessages) -> None:
    """Add the messages in the transaction of the connection, whatever revision the conversation has.

    Raises:
        ConversationInvalid, ValueInvalid: it cannot be stored. MemoryUnavailable: others keep changing it.
    """
    for _ in range(ATTEMPTS):
        parts = await lock_parts(connection, owner, new.session_id, with_documents=True)
        own = parts.own
        kept, user_id, revision = (
            (None, new.user_id, 0) if own is None else (part_of(own), own["user_id"], own["revision"])
        )
        if await parts.write(connection, user_id, new.added_to(kept), revision + 1):
            return
    raise changing(new.session_id)


async def load_state(
    pool: asyncpg.Pool, owner: str, agent_id: str, owner_id: str, key: str
) -> tuple[bytes, int] | None:
    """Return a state as JSON with its revision; None when there is none. Raises MemoryUnavailable."""
    async with owned(pool, owner) as connection:
        rows = await read_states(connection, owner, agent_id, owner_id, [key])
    return (rows[0]["state_value"].encode(), rows[0]["revision"]) if rows else None


async def save_state(
    pool: asyncpg.Pool,
    owner: str,
    place: tuple[str, str, str],
    value: bytes,
    revision: int,
    messages: NewMessages | None,
    beside: tuple[str, bytes | None] | None = None,
) -> int:
    """Compare and set a state, add the messages to their conversation, and put `beside` next to it: all or nothing.

    `beside` is the key and the value of another state of the same agent; None deletes it.

    Raises:
        MemoryUnavailable, OwnerForeign, StaleRevision, ConversationInvalid, ValueInvalid.
    """
    async with owned(pool, owner) as connection:
        saved = await compare_and_set_state(connection, owner, *place, value, revision)
        if messages is not None:
            await append_messages(connection, owner, messages)
        if beside is not None:
            await put_state(connection, owner, place[0], place[1], *beside)
        return saved

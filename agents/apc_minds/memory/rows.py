"""The rows of apc_app.conversation_history: a conversation has one for each login of an agent that adds to it.

A login agent.<agent_id> sees its own row alone. All other logins share one, and see the conversation as a whole.
"""

from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import orjson

from apc_agents.errors import MemoryUnavailable, OwnerForeign, StaleRevision
from apc_agents.handling.state import refusals
from apc_agents.ports import Connection, ConversationContext, NewMessages
from apc_minds.memory.conversation import merged, words_of

ATTEMPTS: Final = 3
"""A row that somebody else made meanwhile is seen by the next attempt."""
_LOCK: Final = """
select user_id, revision, case when $3 then conversation_data::text end as document
from apc_app.conversation_history where session_id = $1 and owner = $2 and made_by = apc_app.writing_agent() for update
"""
# Never locked: a login that holds its own row must not stop others.
_OTHERS: Final = """
select made_by, revision from apc_app.conversation_history
where session_id = $1 and owner = $2 and user_id = $3 and made_by <> apc_app.writing_agent()
"""
_PARTS: Final = """
session_id, user_id, made_by, made_by = apc_app.writing_agent() as is_own, revision, conversation_data::text as document
"""
# What this login wrote comes first. An agent that names another user has a conversation beside it, not a part of it.
_READ: Final = f"""
with parts as (
    select {_PARTS}, created_at from apc_app.conversation_history
    where session_id = $1 and owner = $2 and ($3 or made_by = apc_app.writing_agent()))
select * from parts
where is_own or user_id = coalesce((select own.user_id from parts as own where own.is_own), user_id)
order by is_own desc, created_at, made_by
"""
_WRITE: Final = """
insert into apc_app.conversation_history as kept
    (session_id, user_id, conversation_data, version, search, owner, revision)
values ($1, $2, $3::text::jsonb, $4, array_to_tsvector($5::text[]), $6, $7)
on conflict (session_id, owner, made_by) do update
    set conversation_data = excluded.conversation_data, version = excluded.version, search = excluded.search,
        revision = excluded.revision, updated_at = clock_timestamp()
    where kept.user_id = excluded.user_id and kept.revision = $8
returning revision
"""
_DELETE_OTHERS: Final = """
update apc_app.conversation_history set is_removed = true
where session_id = $1 and owner = $2 and (made_by, revision) in (
    select other.made_by, other.revision from apc_app.conversation_history as other
    join unnest($3::text[], $4::bigint[]) as seen (made_by, revision) using (made_by, revision)
    where other.session_id = $1 and other.owner = $2 for update of other skip locked)
"""


@dataclass(frozen=True, slots=True)
class OwnPart:
    """This login's row of a conversation, locked until the transaction ends; None = it has none yet."""

    owner: str
    session_id: str
    row: asyncpg.Record | None

    @property
    def revision(self) -> int:
        """Its revision; 0 = nothing is there."""
        return 0 if self.row is None else self.row["revision"]

    def conversation(self) -> ConversationContext | None:
        """Return what it holds, if it was read. Raises ConversationInvalid."""
        if self.row is None:
            return None
        return ConversationContext.from_document(orjson.loads(self.row["document"]), self.row["revision"])

    async def write(
        self, connection: Connection, user_id: str, conversation: ConversationContext, revision: int
    ) -> bool:
        """Store the row under a revision; False when somebody else made it meanwhile. Raises ValueInvalid."""
        row = (self.session_id, user_id, conversation.to_bytes().decode(), conversation.version)
        words = words_of(conversation)
        with refusals(conversation_name(self.session_id)):
            stored = await connection.fetchval(_WRITE, *row, words, self.owner, revision, self.revision)
        return stored is not None


def conversation_name(session_id: str) -> str:
    """Return a conversation, for a message."""
    return f"conversation {session_id}"


async def lock_own_part(connection: Connection, owner: str, session_id: str, *, with_document: bool = False) -> OwnPart:
    """Lock the row of a conversation that this login wrote."""
    return OwnPart(owner, session_id, await connection.fetchrow(_LOCK, session_id, owner, with_document))


async def read_conversation(
    connection: Connection, owner: str, session_id: str, *, sees_others: bool = True
) -> ConversationContext | None:
    """Return all of a conversation that this login sees; None when there is nothing. Raises ConversationInvalid."""
    return whole_of(await connection.fetch(_READ, session_id, owner, sees_others))


async def replace_conversation(
    connection: Connection, owner: str, user_id: str, conversation: ConversationContext
) -> None:
    """Replace all of a conversation that this login sees. Raises OwnerForeign, StaleRevision, ValueInvalid."""
    session_id, wanted = conversation.session_id, conversation.revision
    for _ in range(ATTEMPTS):
        own = await lock_own_part(connection, owner, session_id)
        if own.row is not None and own.row["user_id"] != user_id:
            raise OwnerForeign(conversation_name(session_id))
        others = await connection.fetch(_OTHERS, session_id, owner, user_id)
        revision = own.revision + sum(row["revision"] for row in others)
        if wanted is not None and wanted != revision:
            raise StaleRevision(conversation_name(session_id), wanted, revision)
        if await own.write(connection, user_id, conversation, revision + 1):
            if others:
                seen = ([row["made_by"] for row in others], [row["revision"] for row in others])
                await connection.execute(_DELETE_OTHERS, session_id, owner, *seen)
            return
    raise changing(session_id)


def whole_of(rows: list[asyncpg.Record]) -> ConversationContext | None:
    """Return the conversation that these rows hold. Raises ConversationInvalid."""
    parts = [part_of(row) for row in rows]
    return merged(parts) if parts else None


def part_of(row: Any) -> ConversationContext:
    """Return what a row holds, marked where another login wrote it. Raises ConversationInvalid."""
    part = ConversationContext.from_document(orjson.loads(row["document"]), row["revision"])
    return part if row["is_own"] else part.written_by(row["made_by"])


def changing(session_id: str) -> MemoryUnavailable:
    """Return the error for a row that others created and deleted at each attempt to write it."""
    return MemoryUnavailable(f"{conversation_name(session_id)} was changed by others {ATTEMPTS} times: try again")


# Adds what was said to the conversation of a session, in the transaction that saves the state it belongs to.


async def append_messages(connection: Connection, owner: str, new: NewMessages) -> None:
    """Add the messages in the transaction of the connection, whatever revision the conversation has.

    Raises:
        ConversationInvalid, ValueInvalid: it cannot be stored. MemoryUnavailable: others keep changing it.
    """
    for _ in range(ATTEMPTS):
        own = await lock_own_part(connection, owner, new.session_id, with_document=True)
        kept, user_id = (None, new.user_id) if own.row is None else (own.conversation(), own.row["user_id"])
        if await own.write(connection, user_id, new.added_to(kept), own.revision + 1):
            return
    raise changing(new.session_id)

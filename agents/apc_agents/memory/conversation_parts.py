"""The rows of conversation_history: a conversation has one for each login of an agent that adds to it.

A login agent.<agent_id> sees its own row alone. All other logins share one, and see the conversation as a whole.
"""

from dataclasses import dataclass
from typing import Any, Final

import asyncpg
import orjson

from apc_agents.memory.conversation import ConversationContext, merged
from apc_agents.memory.conversation_search import words_of
from apc_agents.memory.errors import MemoryUnavailable, OwnerForeign, StaleRevision
from apc_agents.memory.statements import Connection, refusals

ATTEMPTS: Final = 3
"""A row that somebody else made meanwhile is seen by the next attempt."""
_LOCK: Final = """
select made_by = apc_app.writing_agent() as is_own, user_id, revision,
    case when $3 then conversation_data::text end as document
from apc_app.conversation_history where session_id = $1 and owner = $2 order by created_at, made_by for update
"""
_READ: Final = """
select conversation_data::text as document, revision from apc_app.conversation_history
where session_id = $1 and owner = $2 order by created_at, made_by
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
delete from apc_app.conversation_history
where session_id = $1 and owner = $2 and made_by <> apc_app.writing_agent()
"""


@dataclass(frozen=True, slots=True)
class LockedParts:
    """The rows of a conversation, locked until the transaction ends."""

    owner: str
    session_id: str
    rows: list[asyncpg.Record]

    @property
    def revision(self) -> int:
        """The revision of the whole; 0 = nothing is there."""
        return sum(row["revision"] for row in self.rows)

    @property
    def own(self) -> asyncpg.Record | None:
        """The row of this login."""
        return next((row for row in self.rows if row["is_own"]), None)

    async def write(
        self, connection: Connection, user_id: str, conversation: ConversationContext, revision: int
    ) -> bool:
        """Store this login's row under a revision; False when somebody else made it meanwhile. Raises ValueInvalid."""
        row = (self.session_id, user_id, conversation.to_bytes().decode(), conversation.version)
        expected = 0 if self.own is None else self.own["revision"]
        with refusals(conversation_name(self.session_id)):
            stored = await connection.fetchval(_WRITE, *row, words_of(conversation), self.owner, revision, expected)
        return stored is not None


def conversation_name(session_id: str) -> str:
    """Return a conversation, for a message."""
    return f"conversation {session_id}"


async def lock_parts(
    connection: Connection, owner: str, session_id: str, *, with_documents: bool = False
) -> LockedParts:
    """Lock the rows of a conversation that this login sees."""
    return LockedParts(owner, session_id, await connection.fetch(_LOCK, session_id, owner, with_documents))


async def read_conversation(connection: Connection, owner: str, session_id: str) -> ConversationContext | None:
    """Return all of a conversation that this login sees; None when there is nothing. Raises ConversationInvalid."""
    return whole_of(await connection.fetch(_READ, session_id, owner))


async def replace_conversation(
    connection: Connection, owner: str, user_id: str, conversation: ConversationContext
) -> None:
    """Replace all of a conversation that this login sees. Raises OwnerForeign, StaleRevision, ValueInvalid."""
    session_id, wanted = conversation.session_id, conversation.revision
    for _ in range(ATTEMPTS):
        parts = await lock_parts(connection, owner, session_id)
        if any(row["user_id"] != user_id for row in parts.rows):
            raise OwnerForeign(conversation_name(session_id))
        if wanted is not None and wanted != parts.revision:
            raise StaleRevision(conversation_name(session_id), wanted, parts.revision)
        if await parts.write(connection, user_id, conversation, parts.revision + 1):
            if len(parts.rows) > (parts.own is not None):
                await connection.execute(_DELETE_OTHERS, session_id, owner)
            return
    raise changing(session_id)


def whole_of(rows: list[asyncpg.Record]) -> ConversationContext | None:
    """Return the conversation that these rows hold. Raises ConversationInvalid."""
    parts = [part_of(row) for row in rows]
    return merged(parts) if parts else None


def part_of(row: Any) -> ConversationContext:
    """Return what a row holds. Raises ConversationInvalid."""
    return ConversationContext.from_document(orjson.loads(row["document"]), row["revision"])


def changing(session_id: str) -> MemoryUnavailable:
    """Return the error for a row that others created and deleted at each attempt to write it."""
    return MemoryUnavailable(f"{conversation_name(session_id)} was changed by others {ATTEMPTS} times: try again")

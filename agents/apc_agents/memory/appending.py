"""Adds what was said to the conversation of a session, in the transaction that saves the state it belongs to."""

from dataclasses import dataclass
from typing import Final

import orjson

from apc_agents.memory.conversation import ConversationContext, Message
from apc_agents.memory.errors import OwnerForeign
from apc_agents.memory.rows import Connection, refusals
from apc_agents.memory.search import words_of
from apc_agents.memory.values import checked_id
from apc_bus.settings import SituationSettings

_LOCK: Final = """
select user_id, conversation_data::text as document, revision from apc_app.conversation_history
where session_id = $1 and owner = $2 for update
"""
_BEGIN: Final = """
insert into apc_app.conversation_history (session_id, user_id, conversation_data, version, search, owner)
values ($1, $2, $3::text::jsonb, $4, array_to_tsvector($5::text[]), $6)
on conflict (session_id) do nothing
returning revision
"""
_GROW: Final = """
update apc_app.conversation_history
set conversation_data = $3::text::jsonb, version = $4, search = array_to_tsvector($5::text[]),
    revision = revision + 1, updated_at = clock_timestamp()
where session_id = $1 and user_id = $2 and owner = $6
returning revision
"""


@dataclass(frozen=True, slots=True)
class NewMessages:
    """What was said in a session since its state was saved last.

    `user_id` is whose conversation it is if nobody began it yet; `is_restart` forgets what was said before.
    """

    session_id: str
    user_id: str
    participant: str
    messages: tuple[Message, ...] = ()
    is_restart: bool = False

    def added_to(self, kept: ConversationContext | None) -> ConversationContext:
        """Return the conversation with these messages, each once, within the bounds of the settings."""
        checked_id("session_id", self.session_id)
        checked_id("user_id", self.user_id)
        if kept is None:
            kept = ConversationContext(session_id=self.session_id, metadata={"user_id": self.user_id})
        if self.is_restart:
            kept = kept.model_copy(update={"messages": ()})
        known = {message.metadata.get("message_id") for message in kept.messages}
        fresh = (one for one in self.messages if one.metadata.get("message_id") not in known)
        grown = kept.with_participant(self.participant)
        for message in fresh:
            grown = grown.with_message(message)
        settings = SituationSettings()
        return grown.shortened(settings.kept_messages, settings.kept_bytes)


async def append_messages(connection: Connection, owner: str, new: NewMessages) -> None:
    """Add the messages in the transaction of the connection, whatever revision the conversation has.

    Raises:
        OwnerForeign: the session is another owner's. ConversationInvalid, ValueInvalid: it cannot be stored.
    """
    what = f"conversation {new.session_id}"
    for _ in range(2):  # the second time behind whoever began it meanwhile
        row = await connection.fetchrow(_LOCK, new.session_id, owner)
        kept = None if row is None else ConversationContext.from_document(orjson.loads(row["document"]))
        grown = new.added_to(kept)
        user_id = new.user_id if row is None else row["user_id"]
        arguments = (new.session_id, user_id, grown.to_bytes().decode(), grown.version, words_of(grown), owner)
        with refusals(what):
            if await connection.fetchval(_BEGIN if row is None else _GROW, *arguments) is not None:
                return
    raise OwnerForeign(what)

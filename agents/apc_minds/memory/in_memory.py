"""A memory that ends with the process: for tests, development and single sessions."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

import orjson

from apc_agents.errors import OwnerForeign, StaleRevision
from apc_agents.ports import (
    DEFAULT_OWNER,
    BaseMemoryStore,
    ConversationContext,
    NewMessages,
    Removed,
    checked_id,
    encoded,
    state_name,
)
from apc_bus.settings import LanguageSettings
from apc_minds.memory.conversation import (
    check_conversation,
    check_page,
    check_timestamp,
    find_hit,
    parse_query,
    ranked,
    state_place,
)
from apc_minds.text import stemmer_of

_Place = tuple[str, str, str]
"""agent_id, owner_id, key."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What both tables have."""

    document: bytes
    created_at: datetime
    updated_at: datetime
    revision: int = 1


@dataclass(frozen=True, slots=True)
class _Conversation(_Row):
    user_id: str = ""

    def read(self) -> ConversationContext:
        return ConversationContext.from_document(orjson.loads(self.document), self.revision)


_RowT = TypeVar("_RowT", bound=_Row)


@dataclass(slots=True)
class _Tables:
    """Of one owner."""

    conversations: dict[str, _Conversation] = field(default_factory=dict)
    states: dict[_Place, _Row] = field(default_factory=dict)


class InMemoryMemoryStore(BaseMemoryStore):
    """Keeps what a database would keep, as the same bytes; copies go in and out."""

    def __init__(self, owner: str = DEFAULT_OWNER) -> None:
        super().__init__(owner)
        self._tables = _Tables()
        self._by_owner = {owner: self._tables}

    async def store_conversation(self, session_id: str, user_id: str, conversation: ConversationContext) -> None:
        """Replace, or compare and set."""
        check_conversation(session_id, user_id, conversation)
        document, what = conversation.to_bytes(), f"conversation {session_id}"
        kept = self._tables.conversations.get(session_id)
        if kept is not None and kept.user_id != user_id:
            raise OwnerForeign(what)
        _check_revision(what, conversation.revision, kept)
        self._tables.conversations[session_id] = _written(kept, document, user_id)

    async def retrieve_conversation(self, session_id: str) -> ConversationContext | None:
        """Return a copy of the conversation; None if there is none."""
        row = self._tables.conversations.get(checked_id("session_id", session_id))
        return None if row is None else row.read()

    async def delete_conversation(self, session_id: str) -> bool:
        """Delete a conversation; True even if there was none."""
        self._tables.conversations.pop(checked_id("session_id", session_id), None)
        return True

    async def list_conversations_for_user(
        self, user_id: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Return the last updated first."""
        check_page(limit, offset)
        return self._listed(user_id, limit, offset)

    async def search_conversations(
        self, user_id: str, query: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Search every conversation of the user."""
        check_page(limit, offset)
        stemmer = stemmer_of(LanguageSettings().language)
        wanted = parse_query(query, stemmer)
        hits = []
        for row in self._listed(user_id, len(self._tables.conversations) or 1, 0):
            hit = find_hit(self._tables.conversations[row["session_id"]].read(), wanted, stemmer)
            if hit is not None:
                hits.append({**row, "rank": hit.rank, "excerpt": hit.excerpt})
        return ranked(hits)[offset : offset + limit]

    async def delete_agent_state(self, agent_id: str, owner_id: str, key: str) -> bool:
        """Delete a value; True even if there was none."""
        self._tables.states.pop(state_place(agent_id, owner_id, key), None)
        return True

    async def get_all_agent_states(self, agent_id: str, owner_id: str) -> dict[str, Any]:
        """Return copies of all states of the agent."""
        rows = self._states_of(agent_id, owner_id)
        return {key: orjson.loads(row.document) for (_, _, key), row in sorted(rows.items())}

    def for_owner(self, owner: str) -> Self:
        """Return the same memory, seen by another owner."""
        other = type(self)(owner)
        other._by_owner = self._by_owner
        other._tables = self._by_owner.setdefault(owner, other._tables)
        return other

    async def load_agent_state(self, agent_id: str, owner_id: str, key: str) -> tuple[Any, int] | None:
        """Return a copy, and its revision."""
        stored = self.load_document(state_place(agent_id, owner_id, key))
        return None if stored is None else (orjson.loads(stored[0]), stored[1])

    async def save_agent_state(
        self,
        agent_id: str,
        owner_id: str,
        key: str,
        state_data: Any,
        revision: int,
        messages: NewMessages | None = None,
    ) -> int:
        """Compare and set; the messages are checked before anything is written."""
        return self.save_document(state_place(agent_id, owner_id, key), encoded(state_data), revision, messages)

    def load_document(self, place: _Place) -> tuple[bytes, int] | None:
        """Return a state as JSON with its revision; None when there is none."""
        row = self._tables.states.get(place)
        return None if row is None else (row.document, row.revision)

    def save_document(self, place: _Place, document: bytes, revision: int, messages: NewMessages | None) -> int:
        """Compare and set a state that is JSON already, and add the messages to their conversation.

        Raises:
            StaleRevision, ConversationInvalid, ValueInvalid.
        """
        kept = self._tables.states.get(place)
        _check_revision(state_name(*place), revision, kept)
        if messages is not None:
            conversation = self._tables.conversations.get(messages.session_id)
            grown = messages.added_to(None if conversation is None else conversation.read()).to_bytes()
            self._tables.conversations[messages.session_id] = _written(conversation, grown, messages.user_id)
        self._tables.states[place] = written = _row(kept, document)
        return written.revision

    def put_document(self, place: _Place, document: bytes | None) -> None:
        """Replace a state that is JSON already, whatever its revision; None deletes it."""
        if document is None:
            self._tables.states.pop(place, None)
        else:
            self._tables.states[place] = _row(self._tables.states.get(place), document)

    async def store_agent_states(self, agent_id: str, owner_id: str, states: Mapping[str, Any]) -> None:
        """Store all states or none: everything is checked before the first change."""
        places = {state_place(agent_id, owner_id, key): encoded(value) for key, value in states.items()}
        for place, document in places.items():
            self._tables.states[place] = _row(self._tables.states.get(place), document)

    async def get_agent_states(self, agent_id: str, owner_id: str, keys: Sequence[str]) -> dict[str, Any]:
        """Return copies of the states under these keys."""
        rows = self._states_of(agent_id, owner_id)
        return {key: orjson.loads(rows[place].document) for key in keys if (place := (agent_id, owner_id, key)) in rows}

    async def delete_agent_states(self, agent_id: str, owner_id: str, prefix: str) -> int:
        """Delete the states whose keys begin with a prefix."""
        state_place(agent_id, owner_id, prefix)
        gone = [place for place in self._states_of(agent_id, owner_id) if place[2].startswith(prefix)]
        for place in gone:
            del self._tables.states[place]
        return len(gone)

    async def forget_before(self, moment: datetime) -> Removed:
        """Delete everything last written before a time."""
        check_timestamp(moment)
        return self._remove(lambda row: row.updated_at < moment, lambda place, row: row.updated_at < moment)

    async def export_user(self, user_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield a user's conversations, then the states."""
        sessions = self._sessions_of(user_id)
        for session_id in sorted(sessions):
            kept = self._tables.conversations[session_id]
            yield {"kind": "conversation", **_times(kept), "conversation": orjson.loads(kept.document)}
        for (agent_id, owner_id, key), row in sorted(self._tables.states.items()):
            if owner_id in {user_id, *sessions}:
                place = {"agent_id": agent_id, "owner_id": owner_id, "key": key}
                yield {"kind": "agent_state", **place, **_times(row), "state": orjson.loads(row.document)}

    async def erase_user(self, user_id: str) -> Removed:
        """Delete a user's conversations and states."""
        owners = {user_id, *self._sessions_of(user_id)}
        return self._remove(lambda row: row.user_id == user_id, lambda place, row: place[1] in owners)

    def _states_of(self, agent_id: str, owner_id: str) -> dict[_Place, _Row]:
        owner_of = checked_id("agent_id", agent_id), checked_id("owner_id", owner_id)
        return {place: row for place, row in self._tables.states.items() if place[:2] == owner_of}

    def _sessions_of(self, user_id: str) -> set[str]:
        checked_id("user_id", user_id)
        rows = self._tables.conversations.items()
        return {session_id for session_id, row in rows if row.user_id == user_id}

    def _listed(self, user_id: str, limit: int, offset: int) -> list[dict[str, Any]]:
        rows = [(one, self._tables.conversations[one]) for one in sorted(self._sessions_of(user_id))]
        rows.sort(key=lambda pair: pair[1].updated_at, reverse=True)
        conversations = [(session_id, row, row.read()) for session_id, row in rows]
        listed = [
            {
                "session_id": session_id,
                "user_id": row.user_id,
                **_times(row),
                "summary": conversation.summary,
                "message_count": len(conversation.messages),
                "version": conversation.version,
            }
            for session_id, row, conversation in conversations
        ]
        return listed[offset : offset + limit]

    def _remove(
        self, is_conversation: Callable[[_Conversation], bool], is_state: Callable[[_Place, _Row], bool]
    ) -> Removed:
        tables = self._tables
        conversations = [place for place, row in tables.conversations.items() if is_conversation(row)]
        states = [place for place, row in tables.states.items() if is_state(place, row)]
        for session_id in conversations:
            del tables.conversations[session_id]
        for place in states:
            del tables.states[place]
        return Removed(len(conversations), len(states))


def _row(kept: _Row | None, document: bytes) -> _Row:
    now = datetime.now(UTC)
    return _Row(document, now, now) if kept is None else _again(kept, document)


def _written(kept: _Conversation | None, document: bytes, user_id: str) -> _Conversation:
    now = datetime.now(UTC)
    return _Conversation(document, now, now, user_id=user_id) if kept is None else _again(kept, document)


def _again(kept: _RowT, document: bytes) -> _RowT:
    return replace(kept, document=document, updated_at=datetime.now(UTC), revision=kept.revision + 1)


def _check_revision(what: str, revision: int | None, kept: _Row | None) -> None:
    current = 0 if kept is None else kept.revision
    if revision is not None and revision != current:
        raise StaleRevision(what, revision, current)


def _times(row: _Row) -> dict[str, Any]:
    return {
        "created_at": row.created_at.isoformat(),
        "last_updated": row.updated_at.isoformat(),
        "revision": row.revision,
    }

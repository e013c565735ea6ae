"""The memory in PostgreSQL: tables apc_app.conversation_history and apc_app.agent_state_store."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import wraps
from itertools import groupby
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import asyncpg
import orjson

from apc_agents.errors import MemoryUnavailable, StaleRevision
from apc_agents.handling.state import load_state, owned, read_states, replace_states, save_state
from apc_agents.patience import patiently
from apc_agents.ports import (
    DEFAULT_OWNER,
    BaseMemoryStore,
    ConversationContext,
    NewMessages,
    Removed,
    checked_id,
    encoded,
)
from apc_bus.settings import LanguageSettings
from apc_minds.memory.conversation import (
    check_conversation,
    check_page,
    check_timestamp,
    find_hit,
    merged,
    parse_query,
    ranked,
    state_place,
)
from apc_minds.memory.rows import part_of, read_conversation, replace_conversation
from apc_minds.text import stemmer_of

EXPORT_PAGE: Final = 20
"""Records that an export reads ahead: each may have 16 MiB."""

_REMOVE: Final = "update apc_app.conversation_history set is_removed = true"
_REMOVE_STATES: Final = "update apc_app.agent_state_store set is_removed = true"
_DELETE: Final = f"{_REMOVE} where session_id = $1 and owner = $2"
# The page is found in the index alone: what an offset skips is never read from the table. Several rows of a session are
# those of several logins of agents, and are read as a whole.
_LISTED: Final = """
session_id, user_id, made_by, made_by = apc_app.writing_agent() as is_own, created_at, updated_at, summary,
message_count, version, revision"""
_LIST: Final = f"""
with page as materialized (
    select session_id, max(updated_at) as last_updated from apc_app.conversation_history
    where user_id = $1 and owner = $2 and ($5 or made_by = apc_app.writing_agent())
    group by session_id
    order by last_updated desc, session_id collate "C" limit $3 offset $4)
select {_LISTED},
    case when count(*) over (partition by session_id) > 1 then conversation_data::text end as document
from apc_app.conversation_history join page using (session_id)
where owner = $2 and user_id = $1 and ($5 or made_by = apc_app.writing_agent())
order by page.last_updated desc, session_id collate "C", is_own desc, created_at, made_by
"""
_SEARCH: Final = f"""
select {_LISTED}, conversation_data::text as document
from apc_app.conversation_history as part
where user_id = $1 and owner = $2 and ($4 or made_by = apc_app.writing_agent()) and exists (
    select from apc_app.conversation_history as hit
    where ($4 or hit.made_by = apc_app.writing_agent()) and hit.session_id = part.session_id and hit.user_id = $1
      and hit.owner = $2 and hit.search @@ $3::text::tsquery)
order by max(updated_at) over (partition by session_id) desc, session_id collate "C", is_own desc, created_at, made_by
"""
_DELETE_STATES: Final = f"{_REMOVE_STATES} where agent_id = $1 and owner_id = $2 and owner = $3"
_FORGET_CONVERSATIONS: Final = f"{_REMOVE} where owner = $1 and updated_at < $2"
_FORGET_STATES: Final = f"{_REMOVE_STATES} where owner = $1 and updated_at < $2"
_OF_USER: Final = """
owner = $1 and (owner_id = $2
    or owner_id in (select session_id from apc_app.conversation_history where owner = $1 and user_id = $2))
"""
_EXPORT_CONVERSATIONS: Final = """
select created_at, updated_at, revision, made_by, made_by = apc_app.writing_agent() as is_own,
    conversation_data::text as document
from apc_app.conversation_history
where owner = $1 and user_id = $2 order by session_id collate "C", made_by
"""
_EXPORT_STATES: Final = f"""
select agent_id, owner_id, state_key, created_at, updated_at, revision, state_value::text as document
from apc_app.agent_state_store where {_OF_USER}
order by agent_id collate "C", owner_id collate "C", state_key collate "C"
"""
_ERASE_STATES: Final = f"{_REMOVE_STATES} where {_OF_USER}"
_ERASE_CONVERSATIONS: Final = f"{_REMOVE} where owner = $1 and user_id = $2"


Given = ParamSpec("Given")
ResultT = TypeVar("ResultT")


def _repeated(
    method: Callable[Concatenate["PostgresMemoryStore", Given], Coroutine[Any, Any, ResultT]],
) -> Callable[Concatenate["PostgresMemoryStore", Given], Coroutine[Any, Any, ResultT]]:
    """Repeat a method of a patient store as `patiently` does: a transaction that may be repeated."""

    @wraps(method)
    async def patient(store: "PostgresMemoryStore", /, *args: Given.args, **kwargs: Given.kwargs) -> ResultT:
        if not store.is_patient:
            return await method(store, *args, **kwargs)
        return await patiently(lambda: method(store, *args, **kwargs), "memory store", awaits=_is_passing)

    return patient


class PostgresMemoryStore(BaseMemoryStore):
    """The memory of one owner in Postgres. The pool (`apc_bus.database.open_pool`) stays the caller's.

    Args:
        is_patient: wait for a database that is away, as the handlers of a worker do, and repeat a statement that it
            gives up, for a while; else raise MemoryUnavailable at once.
        sees_others: read what the logins of agents have added to conversations, too, marked as `made_by` them. A chat
            and an agent read their own alone: any agent may name any user, session and owner.
    """

    def __init__(
        self, pool: asyncpg.Pool, owner: str = DEFAULT_OWNER, *, is_patient: bool = False, sees_others: bool = True
    ) -> None:
        super().__init__(owner)
        self._pool = pool
        self.is_patient = is_patient
        self._sees_others = sees_others

    async def store_conversation(self, session_id: str, user_id: str, conversation: ConversationContext) -> None:
        """Store or replace a conversation in one statement."""
        check_conversation(session_id, user_id, conversation)

        async def store() -> int:
            async with owned(self._pool, self.owner) as connection:
                await replace_conversation(connection, self.owner, user_id, conversation)
            return 0

        async def is_stored() -> bool:
            kept = await self.retrieve_conversation(session_id)
            return kept is not None and kept.to_document() == conversation.to_document()

        await self._compare_and_set(store, is_stored)

    @_repeated
    async def retrieve_conversation(self, session_id: str) -> ConversationContext | None:
        """Return the conversation of a session; None if there is none."""
        checked_id("session_id", session_id)
        async with owned(self._pool, self.owner) as connection:
            return await read_conversation(connection, self.owner, session_id, sees_others=self._sees_others)

    @_repeated
    async def delete_conversation(self, session_id: str) -> bool:
        """Delete a conversation; True even if there was none."""
        checked_id("session_id", session_id)
        async with owned(self._pool, self.owner) as connection:
            await connection.execute(_DELETE, session_id, self.owner)
        return True

    @_repeated
    async def list_conversations_for_user(
        self, user_id: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """List conversations from their own columns, without reading one."""
        check_page(limit, offset)
        checked_id("user_id", user_id)
        async with owned(self._pool, self.owner) as connection:
            rows = await connection.fetch(_LIST, user_id, self.owner, limit, offset, self._sees_others)
        return [_metadata(list(parts)) for _, parts in groupby(rows, lambda row: row["session_id"])]

    @_repeated
    async def search_conversations(
        self, user_id: str, query: str, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        """Search the words of every conversation of the user."""
        check_page(limit, offset)
        checked_id("user_id", user_id)
        stemmer = stemmer_of(LanguageSettings().language)
        wanted, hits = parse_query(query, stemmer), []
        async with owned(self._pool, self.owner) as connection:
            arguments = (user_id, self.owner, wanted.to_tsquery(), self._sees_others)
            async for parts in _sessions(connection.cursor(_SEARCH, *arguments, prefetch=EXPORT_PAGE)):
                conversation = merged([part_of(row) for row in parts])
                hit = find_hit(conversation, wanted, stemmer)
                if hit is not None:
                    hits.append({**_metadata(parts), "rank": hit.rank, "excerpt": hit.excerpt})
        return ranked(hits)[offset : offset + limit]

    async def delete_agent_state(self, agent_id: str, owner_id: str, key: str) -> bool:
        """Delete a value; True even if there was none."""
        await self._delete_states("and state_key = $4", *state_place(agent_id, owner_id, key))
        return True

    async def get_all_agent_states(self, agent_id: str, owner_id: str) -> dict[str, Any]:
        """Return every value by key, in one statement."""
        return await self._states(agent_id, owner_id, None)

    def for_owner(self, owner: str) -> Self:
        """Return a store of another owner over the same pool."""
        return type(self)(self._pool, owner, is_patient=self.is_patient, sees_others=self._sees_others)

    @_repeated
    async def load_agent_state(self, agent_id: str, owner_id: str, key: str) -> tuple[Any, int] | None:
        """Return a value with its revision; None if there is none."""
        stored = await load_state(self._pool, self.owner, *state_place(agent_id, owner_id, key))
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
        """Compare and set a value, and add messages, in one transaction."""
        place, value = state_place(agent_id, owner_id, key), encoded(state_data)

        async def is_saved() -> bool:
            stored = await self.load_agent_state(*place)
            return stored is not None and stored[0] == orjson.loads(value)

        return await self._compare_and_set(
            lambda: save_state(self._pool, self.owner, place, value, revision, messages), is_saved
        )

    @_repeated
    async def store_agent_states(self, agent_id: str, owner_id: str, states: Mapping[str, Any]) -> None:
        """Store several values in one transaction."""
        values = {state_place(agent_id, owner_id, key)[2]: encoded(value) for key, value in states.items()}
        async with owned(self._pool, self.owner) as connection:
            await replace_states(connection, self.owner, agent_id, owner_id, values)

    async def get_agent_states(self, agent_id: str, owner_id: str, keys: Sequence[str]) -> dict[str, Any]:
        """Return the values of these keys in one statement."""
        return await self._states(agent_id, owner_id, keys)

    async def delete_agent_states(self, agent_id: str, owner_id: str, prefix: str) -> int:
        """Delete the values whose keys begin with a prefix, in one statement."""
        return await self._delete_states("and starts_with(state_key, $4)", *state_place(agent_id, owner_id, prefix))

    async def forget_before(self, moment: datetime) -> Removed:
        """Delete everything last written before a time, in one transaction."""
        check_timestamp(moment)
        return await self._remove(_FORGET_CONVERSATIONS, _FORGET_STATES, moment)

    async def export_user(self, user_id: str) -> AsyncIterator[dict[str, Any]]:
        """Yield what is stored of a user, from one snapshot of the database."""
        checked_id("user_id", user_id)
        async with owned(self._pool, self.owner, is_snapshot=True) as connection:
            async for row in connection.cursor(_EXPORT_CONVERSATIONS, self.owner, user_id, prefetch=EXPORT_PAGE):
                kept = {"conversation": orjson.loads(row["document"])}
                yield {"kind": "conversation", **_times(row), **_origins([row]), **kept}
            async for row in connection.cursor(_EXPORT_STATES, self.owner, user_id, prefetch=EXPORT_PAGE):
                place = {"agent_id": row["agent_id"], "owner_id": row["owner_id"], "key": row["state_key"]}
                yield {"kind": "agent_state", **place, **_times(row), "state": orjson.loads(row["document"])}

    async def erase_user(self, user_id: str) -> Removed:
        """Delete what is stored of a user in one transaction; states first: conversations name them."""
        return await self._remove(_ERASE_CONVERSATIONS, _ERASE_STATES, checked_id("user_id", user_id))

    async def _compare_and_set(
        self, save: Callable[[], Awaitable[int]], is_saved: Callable[[], Awaitable[bool]]
    ) -> int:
        """Save, and repeat it as `_repeated`; a revision that is stale then may be of an attempt with unseen commit."""
        is_unsure = False

        async def attempt() -> int:
            nonlocal is_unsure
            try:
                return await save()
            except MemoryUnavailable:
                is_unsure = True
                raise
            except StaleRevision as stale:
                if is_unsure and stale.current == stale.revision + 1 and await is_saved():
                    return stale.current
                raise

        return await patiently(attempt, "memory store", awaits=_is_passing) if self.is_patient else await save()

    @_repeated
    async def _states(self, agent_id: str, owner_id: str, keys: Iterable[str] | None) -> dict[str, Any]:
        checked_id("agent_id", agent_id)
        checked_id("owner_id", owner_id)
        async with owned(self._pool, self.owner) as connection:
            rows = await read_states(connection, self.owner, agent_id, owner_id, keys)
        return {row["state_key"]: orjson.loads(row["state_value"]) for row in rows}

    @_repeated
    async def _delete_states(self, condition: str, agent_id: str, owner_id: str, key: str) -> int:
        async with owned(self._pool, self.owner) as connection:
            done = await connection.execute(f"{_DELETE_STATES} {condition}", agent_id, owner_id, self.owner, key)
        return _count(done)

    @_repeated
    async def _remove(self, conversations: str, states: str, what: object) -> Removed:
        async with owned(self._pool, self.owner) as connection:
            states_gone = await connection.execute(states, self.owner, what)
            conversations_gone = await connection.execute(conversations, self.owner, what)
        return Removed(_count(conversations_gone), _count(states_gone))


def _is_passing(error: BaseException) -> bool:
    """Return whether the database is away or gave up the statement; not that others keep changing a conversation."""
    return isinstance(error, MemoryUnavailable) and error.__cause__ is not None


def _count(tag: str) -> int:
    """Return the number of rows of a command tag such as `DELETE 3`."""
    return int(tag.rpartition(" ")[2])


async def _sessions(rows: AsyncIterable[asyncpg.Record]) -> AsyncIterator[list[asyncpg.Record]]:
    """Yield the rows of each session; those of one follow each other."""
    parts: list[asyncpg.Record] = []
    async for row in rows:
        if parts and parts[0]["session_id"] != row["session_id"]:
            yield parts
            parts = []
        parts.append(row)
    if parts:
        yield parts


def _metadata(parts: Sequence[asyncpg.Record]) -> dict[str, Any]:
    """Return what a listing shows of the rows of a session."""
    row = parts[0]
    shown = {
        "session_id": row["session_id"],
        "user_id": row["user_id"],
        **_times(row),
        "summary": row["summary"],
        "message_count": row["message_count"],
        "version": row["version"],
        **_origins(parts),
    }
    if len(parts) == 1:
        return shown
    whole = merged([part_of(part) for part in parts])
    return shown | {
        "last_updated": max(part["updated_at"] for part in parts).isoformat(),
        "revision": whole.revision,
        "summary": whole.summary,
        "message_count": len(whole.messages),
    }


def _origins(parts: Sequence[asyncpg.Record]) -> dict[str, Any]:
    """Return as `made_by` the agents whose logins wrote parts; nothing when ours wrote it all."""
    names = [part["made_by"] for part in parts if not part["is_own"]]
    return {"made_by": names} if names else {}


def _times(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "created_at": row["created_at"].isoformat(),
        "last_updated": row["updated_at"].isoformat(),
        "revision": row["revision"],
    }

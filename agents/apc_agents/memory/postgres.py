"""The two tables of the memory in Postgres, statement by statement; values are JSON text here.

Every transaction says whose rows it touches (`apc.owner`). The policies of the tables hold a role without special
rights to that; the statements name the owner too, because no policy holds a superuser. A row goes by `is_removed`: the
right to DELETE is that to lock the table, so a trigger of the table has it, and no login of an agent.
"""

from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from itertools import groupby
from typing import Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar

import asyncpg
import orjson
from asyncpg.pool import PoolConnectionProxy

from apc_agents.memory.conversation import (
    ConversationContext,
    MemoryUnavailable,
    NewMessages,
    OwnerForeign,
    StaleRevision,
    ValueInvalid,
    checked_id,
    encoded,
    find_hit,
    merged,
    parse_query,
    ranked,
    state_name,
    words_of,
)
from apc_agents.memory.store import (
    DEFAULT_OWNER,
    BaseMemoryStore,
    Removed,
    check_conversation,
    check_page,
    check_timestamp,
    state_place,
)
from apc_agents.patience import patiently
from apc_agents.text import stemmer_of
from apc_bus.database import first_line, is_passing
from apc_bus.settings import LanguageSettings

Connection = asyncpg.Connection | PoolConnectionProxy

# In one order of the keys, so that two writers never wait for each other.
_UPSERT_STATES = """
insert into apc_app.agent_state_store as kept (agent_id, owner_id, state_key, state_value, owner)
select $1, $2, given.key, given.value::jsonb, $5
from unnest($3::text[], $4::text[]) as given (key, value) order by given.key collate "C"
on conflict (agent_id, owner_id, state_key, owner) do update
    set state_value = excluded.state_value, revision = kept.revision + 1, updated_at = clock_timestamp()
"""
_INSERT_STATE = """
insert into apc_app.agent_state_store (agent_id, owner_id, state_key, state_value, owner)
values ($1, $2, $3, $4::text::jsonb, $5)
on conflict (agent_id, owner_id, state_key, owner) do nothing
returning revision
"""
_UPDATE_STATE = """
update apc_app.agent_state_store
set state_value = $4::text::jsonb, revision = revision + 1, updated_at = clock_timestamp()
where agent_id = $1 and owner_id = $2 and state_key = $3 and owner = $5 and revision = $6
returning revision
"""
_DELETE_STATE = """
update apc_app.agent_state_store set is_removed = true
where agent_id = $1 and owner_id = $2 and state_key = $3 and owner = $4
"""
_INSERT_ONCE = """
insert into apc_app.agent_state_store (agent_id, owner_id, state_key, state_value, owner)
values ($1, $2, $3, $4::text::jsonb, $5)
on conflict (agent_id, owner_id, state_key, owner) do nothing
"""
_SELECT_BY_PREFIX = """
select state_value::text as state_value from apc_app.agent_state_store
where agent_id = $1 and owner_id = $2 and owner = $3 and starts_with(state_key, $4)
order by state_key collate "C"
"""
_FORGET_BY_PREFIX = """
update apc_app.agent_state_store set is_removed = true
where agent_id = $1 and owner = $2 and starts_with(state_key, $3) and updated_at < clock_timestamp() - $4::interval
"""
_SELECT_STATES = """
select state_key, state_value::text as state_value, revision from apc_app.agent_state_store
where agent_id = $1 and owner_id = $2 and owner = $3 and ($4::text[] is null or state_key = any($4))
order by state_key collate "C"
"""


@asynccontextmanager
async def owned(pool: asyncpg.Pool, owner: str, *, is_snapshot: bool = False) -> AsyncIterator[Connection]:
    """Open a transaction over one owner's rows; a snapshot only reads. Raises MemoryUnavailable."""
    isolation: Literal["repeatable_read"] | None = "repeatable_read" if is_snapshot else None
    try:
        async with pool.acquire() as connection, connection.transaction(isolation=isolation, readonly=is_snapshot):
            await connection.execute("select set_config('apc.owner', $1, true)", owner)
            yield connection
    except Exception as error:
        if not is_passing(error):
            raise
        raise MemoryUnavailable(f"the memory store does not answer: {first_line(error)}") from error


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Translate the database's refusals into errors of the memory. Raises OwnerForeign, ValueInvalid."""
    try:
        yield
    except asyncpg.InsufficientPrivilegeError as error:
        if "row-level security" not in str(error):
            raise
        raise OwnerForeign(what) from error
    except (asyncpg.DataError, asyncpg.ProgramLimitExceededError) as error:
        raise ValueInvalid("$", f"PostgreSQL cannot hold {what}: {error}") from error


async def read_states(
    connection: Connection, owner: str, agent_id: str, owner_id: str, keys: Iterable[str] | None = None
) -> list[asyncpg.Record]:
    """Return state_key, state_value and revision in the order of the keys: those of `keys`, or all."""
    wanted = None if keys is None else list(keys)
    records: list[asyncpg.Record] = await connection.fetch(_SELECT_STATES, agent_id, owner_id, owner, wanted)
    return records


async def replace_states(
    connection: Connection, owner: str, agent_id: str, owner_id: str, states: Mapping[str, bytes]
) -> None:
    """Upsert, in one statement. Raises OwnerForeign, ValueInvalid."""
    values = [value.decode() for value in states.values()]
    with refusals(f"states of agent {agent_id} for {owner_id}"):
        await connection.execute(_UPSERT_STATES, agent_id, owner_id, list(states), values, owner)


async def insert_state(
    connection: Connection, owner: str, agent_id: str, owner_id: str, key: str, value: bytes
) -> None:
    """Insert a state that never changes; one that is there stays. Raises OwnerForeign, ValueInvalid."""
    with refusals(state_name(agent_id, owner_id, key)):
        await connection.execute(_INSERT_ONCE, agent_id, owner_id, key, value.decode(), owner)


async def read_states_with(
    connection: Connection, owner: str, agent_id: str, owner_id: str, prefix: str
) -> list[asyncpg.Record]:
    """Return state_value in the order of the keys that begin with `prefix`."""
    records: list[asyncpg.Record] = await connection.fetch(_SELECT_BY_PREFIX, agent_id, owner_id, owner, prefix)
    return records


async def forget_states_with(connection: Connection, owner: str, agent_id: str, prefix: str, age: timedelta) -> None:
    """Delete the states of an agent whose keys begin with `prefix` and that are older than `age`."""
    await connection.execute(_FORGET_BY_PREFIX, agent_id, owner, prefix, age)


async def put_state(
    connection: Connection, owner: str, agent_id: str, owner_id: str, key: str, value: bytes | None
) -> None:
    """Replace a state whatever its revision; None deletes it. Raises OwnerForeign, ValueInvalid."""
    if value is None:
        await connection.execute(_DELETE_STATE, agent_id, owner_id, key, owner)
    else:
        await replace_states(connection, owner, agent_id, owner_id, {key: value})


async def compare_and_set_state(
    connection: Connection, owner: str, agent_id: str, owner_id: str, key: str, value: bytes, revision: int
) -> int:
    """Replace the value if it has this revision (0 = none). Raises OwnerForeign, StaleRevision, ValueInvalid."""
    statement, more = (_UPDATE_STATE, (revision,)) if revision else (_INSERT_STATE, ())
    what = state_name(agent_id, owner_id, key)
    saved = await _written(connection, statement, what, agent_id, owner_id, key, value.decode(), owner, *more)
    if saved is not None:
        return saved
    rows = await read_states(connection, owner, agent_id, owner_id, [key])
    raise StaleRevision(what, revision, rows[0]["revision"] if rows else 0)


async def _written(connection: Connection, statement: str, what: str, *arguments: Any) -> int | None:
    with refusals(what):
        revision: int | None = await connection.fetchval(statement, *arguments)
        return revision


# The rows of conversation_history: a conversation has one for each login of an agent that adds to it.
#
# A login agent.<agent_id> sees its own row alone. All other logins share one, and see the conversation as a whole.

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


# The memory in PostgreSQL: tables apc_app.conversation_history and apc_app.agent_state_store.

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

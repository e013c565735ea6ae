"""Where an agent's state is kept: one JSON document per (agent, session), with a revision."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable
from uuid import UUID

import asyncpg
import orjson

from apc_agents.emission import HeldPacket
from apc_agents.errors import (
    ConversationInvalid,
    MemoryUnavailable,
    OwnerForeign,
    StaleRevision,
    StateInvalid,
    StateStale,
    StateUnavailable,
    ValueInvalid,
)
from apc_agents.json_values import json_value
from apc_agents.patience import patiently
from apc_agents.ports import DEFAULT_OWNER, Connection, NewMessages, require_mind, state_name
from apc_agents.running.delivery import DeliveryKey, RecentKeys
from apc_bus.database import first_line, is_passing
from apc_bus.telemetry import get_logger
from apc_contracts.packet import AckPacket, NackPacket, Packet
from apc_contracts.wire.parsing import parse_packet, seal

STATE_KEY: Final = "ctx.state"
"""Under which the memory keeps an agent's state in a session (owner_id = session_id)."""


WAIT_PREFIX: Final = "ctx.wait/"
"""Under which it keeps the records of a handler that waits: the prefix, and the packet that started the handler."""


ANSWER_PREFIX: Final = "ctx.answer/"
"""Under which it keeps the ACKs and NACKs of what the agent has emitted: the prefix, the packet, and the answer."""
MAX_ANSWERS = 10_000
"""Packets whose answers are kept in memory."""


@dataclass(frozen=True, slots=True)
class SavedWait:
    """The records of a waiting handler, to be saved with the state; None = they are deleted."""

    cause: UUID
    record: bytes | None


@dataclass(frozen=True, slots=True)
class SavedAnswer:
    """An ACK or NACK as JSON text: a handler that runs again does not get it from its inbox a second time."""

    packet_id: UUID
    """The packet that it answers."""
    answer_id: UUID
    body: bytes

    @property
    def key(self) -> str:
        """Under which it is kept."""
        return f"{ANSWER_PREFIX}{self.packet_id}/{self.answer_id}"


@dataclass(frozen=True, slots=True)
class SavedState:
    """What one save puts into a store, all of it or nothing.

    Attributes:
        document: the state as JSON text.
        revision: the one that is replaced; 0 = none is there yet.
        messages: added to their conversation.
        wait: the records of a handler that waits, or their end.
    """

    document: bytes
    revision: int
    messages: NewMessages | None = None
    wait: SavedWait | None = None


class StateStore(Protocol):
    """Documents by (`agent_id`, `session_id`). A document is JSON text; a revision counts its saves from 1.

    ```python
    states: StateStore = InMemoryStateStore()
    assert await states.load("desk", "session-1") is None
    revision = await states.save("desk", "session-1", SavedState(b'{"state": {}}', 0))
    assert await states.load("desk", "session-1") == (b'{"state": {}}', revision)
    ```
    """

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document of (`agent_id`, `session_id`) and its revision; None when nothing was ever saved.

        Raises StateUnavailable.
        """
        ...

    async def save(self, agent_id: str, session_id: str, saved: SavedState) -> int:
        """Replace the document of (`agent_id`, `session_id`) if it still has that revision; returns the new one.

        What is `saved` beside it goes into the same transaction. Durable when it returns.

        Raises StateStale, StateUnavailable, StateInvalid.
        """
        ...

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of the handler that waits; None when there are none.

        It is of `agent_id`, in `session_id`, and was started by the packet `cause`. Raises StateUnavailable.
        """
        ...

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep `answer`, an ACK or NACK for `agent_id` in `session_id`, once. Durable when it returns.

        Raises StateUnavailable.
        """
        ...

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to the packet `packet_id` of `agent_id` in `session_id`. Raises StateUnavailable."""
        ...

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Forget the answers for `agent_id` that are older than `age`. Raises StateUnavailable."""
        ...


Place = tuple[str, str, str]
"""Of a state: agent_id, owner_id, key."""


@runtime_checkable
class Documents(Protocol):
    """States as JSON in this process, and the messages that are saved with them: an InMemoryMemoryStore."""

    def load_document(self, place: Place) -> tuple[bytes, int] | None:
        """Return a state with its revision; None when there is none."""
        ...

    def save_document(self, place: Place, document: bytes, revision: int, messages: NewMessages | None) -> int:
        """Compare and set a state, and add the messages to their conversation; returns the new revision.

        Raises StaleRevision, ConversationInvalid, ValueInvalid.
        """
        ...

    def put_document(self, place: Place, document: bytes | None) -> None:
        """Replace a state whatever its revision; None deletes it."""
        ...


class _DocumentsAlone:
    """States without a memory beside them: what is said is not kept."""

    def __init__(self) -> None:
        self._kept: dict[Place, tuple[bytes, int]] = {}

    def load_document(self, place: Place) -> tuple[bytes, int] | None:
        return self._kept.get(place)

    def save_document(self, place: Place, document: bytes, revision: int, messages: NewMessages | None) -> int:
        current = self._revision_of(place)
        if revision != current:
            raise StaleRevision(state_name(*place), revision, current)
        self._kept[place] = (document, current + 1)
        return current + 1

    def put_document(self, place: Place, document: bytes | None) -> None:
        if document is None:
            self._kept.pop(place, None)
        else:
            self._kept[place] = (document, self._revision_of(place) + 1)

    def _revision_of(self, place: Place) -> int:
        return self._kept[place][1] if place in self._kept else 0


class InMemoryStateStore:
    """State that ends with the process: for tests and for workers without a database."""

    def __init__(self, memory: Documents | None = None) -> None:
        """Keep states, and what is said in their sessions in `memory`; without one that is not kept."""
        self._states = _DocumentsAlone() if memory is None else memory
        self._answers: OrderedDict[tuple[str, str, UUID], dict[UUID, bytes]] = OrderedDict()

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        return self._states.load_document((agent_id, session_id, STATE_KEY))

    async def save(self, agent_id: str, session_id: str, saved: SavedState) -> int:
        """Compare and set."""
        place, wait = (agent_id, session_id, STATE_KEY), saved.wait
        with _translated(agent_id, session_id):
            revision = self._states.save_document(place, saved.document, saved.revision, saved.messages)
        if wait is not None:
            self._states.put_document((agent_id, session_id, _wait_key(wait.cause)), wait.record)
        return revision

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a waiting handler."""
        found = self._states.load_document((agent_id, session_id, _wait_key(cause)))
        return None if found is None else found[0]

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep an answer; beyond MAX_ANSWERS packets the oldest are forgotten."""
        self._answers.setdefault((agent_id, session_id, answer.packet_id), {})[answer.answer_id] = answer.body
        if len(self._answers) > MAX_ANSWERS:
            self._answers.popitem(last=False)

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to a packet."""
        return list(self._answers.get((agent_id, session_id, packet_id), {}).values())

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Forget nothing: their number is bounded."""


# The rows of apc_app.agent_state_store, statement by statement; values are JSON text here.
#
# Every transaction says whose rows it touches (`apc.owner`). The policies of the table hold a role without special
# rights to that; the statements name the owner too, because no policy holds a superuser. A row goes by `is_removed`:
# the right to DELETE is that to lock the table, so a trigger of the table has it, and no login of an agent.

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
            await require_mind("ctx.say").add_messages(connection, owner, messages)
        if beside is not None:
            await put_state(connection, owner, place[0], place[1], *beside)
        return saved


class PostgresStateStore:
    """State in the memory's table apc_app.agent_state_store, under the key `ctx.state`.

    `run_worker` and `apc worker` use it where APC_DATABASE_URL is set. For a Worker of your own:

    ```python
    import asyncpg

    from apc_bus import Bus


    async def serve(pool: asyncpg.Pool, bus: Bus, stop: asyncio.Event) -> None:
        await Worker(desk, bus, states=PostgresStateStore(pool)).run(stop)
    ```

    Args:
        pool: connections of the agent's role at the database; it stays the caller's.
        owner: whose rows these are; default those that belong to no user.
    """

    def __init__(self, pool: asyncpg.Pool, owner: str = DEFAULT_OWNER) -> None:
        self._pool = pool
        self._owner = owner

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        with _translated(agent_id, session_id):
            return await load_state(self._pool, self._owner, agent_id, session_id, STATE_KEY)

    async def save(self, agent_id: str, session_id: str, saved: SavedState) -> int:
        """Compare and set in one transaction."""
        place, wait = (agent_id, session_id, STATE_KEY), saved.wait
        beside = None if wait is None else (_wait_key(wait.cause), wait.record)
        with _translated(agent_id, session_id):
            return await save_state(
                self._pool, self._owner, place, saved.document, saved.revision, saved.messages, beside
            )

    async def load_wait(self, agent_id: str, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a waiting handler."""
        with _translated(agent_id, session_id):
            found = await load_state(self._pool, self._owner, agent_id, session_id, _wait_key(cause))
        return None if found is None else found[0]

    async def save_answer(self, agent_id: str, session_id: str, answer: SavedAnswer) -> None:
        """Keep an answer in a row beside the state: no revision changes."""
        body = orjson.dumps(answer.body.decode())
        with _translated(agent_id, session_id):
            async with owned(self._pool, self._owner) as connection:
                await insert_state(connection, self._owner, agent_id, session_id, answer.key, body)

    async def load_answers(self, agent_id: str, session_id: str, packet_id: UUID) -> list[bytes]:
        """Return the answers to a packet."""
        prefix = f"{ANSWER_PREFIX}{packet_id}/"
        with _translated(agent_id, session_id):
            async with owned(self._pool, self._owner) as connection:
                rows = await read_states_with(connection, self._owner, agent_id, session_id, prefix)
        return [str(orjson.loads(row["state_value"])).encode() for row in rows]

    async def forget_answers(self, agent_id: str, age: timedelta) -> None:
        """Delete the rows that are older."""
        with _translated(agent_id, "*"):
            async with owned(self._pool, self._owner) as connection:
                await forget_states_with(connection, self._owner, agent_id, ANSWER_PREFIX, age)


def _wait_key(cause: UUID) -> str:
    return f"{WAIT_PREFIX}{cause}"


@contextmanager
def _translated(agent_id: str, session_id: str) -> Iterator[None]:
    """Translate errors of the memory into errors of the state."""
    try:
        yield
    except StaleRevision as stale:
        raise StateStale(agent_id, session_id, stale.revision) from stale
    except MemoryUnavailable as error:
        raise StateUnavailable(str(error)) from error
    except (ConversationInvalid, ValueInvalid, OwnerForeign) as error:  # such as U+0000 in a text
        raise StateInvalid(f"ctx.state of session {session_id} cannot be stored: {error}") from error


# The state documents in use: kept between deliveries, saved when a handler changed them.
#
# Several workers of an agent share its documents. What a handler says follows from the document, so it may only use one
# that was read for its delivery. A worker whose handlers do not use the state reads each document once.
#
# A saved document also names the deliveries that led to it. A worker that dies after the save and before its
# receipts gets such a delivery again, and must not apply it to the state a second time.
#
# What a handler emits about a state that is not saved yet is saved in the document too, by the delivery that led to it,
# and published afterwards. The answer to it then finds this state in every worker, and a worker that dies before it has
# published everything gets the delivery again, and publishes what the document has. The next save leaves it out.

MAX_DOCUMENTS = 1_000
MAX_SENT = 10_000
"""Deliveries remembered of which everything is published."""
MAX_HANDLED = 256
"""Deliveries named in a saved document: more than a worker ever has unacknowledged in one queue by default."""
FORGETTING_INTERVAL = timedelta(hours=1)

_log = get_logger("apc_agents")
ResultT = TypeVar("ResultT")


UnsentPacket = tuple[str, str | None, int | None, bool]
"""The body of a packet, the cause and ordinal that its id was derived from, and whether it belongs to ctx.memory."""


class StateDocument:
    """The state of an agent in one session. `value` is the handler's own dict."""

    def __init__(self, agent_id: str, session_id: str, stored: bytes, revision: int) -> None:
        loaded = orjson.loads(stored) if stored else {}
        self.session_id = session_id
        self._agent_id = agent_id
        self.value: dict[str, Any] = loaded.get("state", {})
        self.is_fresh = True
        """Whether it was read for this delivery; another worker may have saved one that was kept."""
        self._handled: list[str] = loaded.get("handled", [])
        self._handled_packets = _packets(self._handled)
        self._revision = revision
        self._clean = _encode(self.value)
        self._is_used = False
        """Whether a handler has looked into it, and may have changed it."""
        self.messages: NewMessages | None = None
        """What was said meanwhile: saved with the value."""
        self.held: list[HeldPacket] = []
        """What was emitted meanwhile: saved with the value, then published."""
        self._unsent: dict[str, list[UnsentPacket]] = loaded.get("unsent", {})
        """Packet -> what its handler has emitted and may not be published."""
        self.waits: dict[str, list[str]] = loaded.get("waits", {})
        """ASK -> the packet that started the handler that waits, and the one whose delivery led to this wait."""
        self._clean_waits = dict(self.waits)

    @property
    def revision(self) -> int:
        """How often it was saved when it was read or saved here."""
        return self._revision

    def use(self) -> None:
        """Note that a handler looks into it. Raises StateStale: it was not read for this delivery, and has to be."""
        if not self.is_fresh:
            raise StateStale(self._agent_id, self.session_id, self._revision)
        self._is_used = True

    @property
    def is_changed(self) -> bool:
        """Whether a handler has changed what is saved. Raises StateInvalid: the value cannot be saved as it is."""
        is_changed = self._is_used and _encode(self.value) != self._clean
        return is_changed or self.messages is not None

    def check(self) -> None:
        """Raise StateInvalid when the state cannot be saved: nothing is sent or done about it."""
        _ = self.is_changed

    def was_handled(self, key: DeliveryKey) -> bool:
        """Return whether the saved state has this packet, by this attempt or one that was given up too early."""
        return bool(self._handled_packets) and str(key[0]) in self._handled_packets

    def wait_of(self, ask: UUID) -> UUID | None:
        """Return the packet that started the handler that waits for this answer."""
        found = self.waits.get(str(ask))
        return None if found is None else UUID(found[0])

    def wait_led_to(self, packet_id: UUID) -> UUID | None:
        """Return the packet that started the handler whose open wait began when this packet was handled."""
        led = (cause for cause, trigger in self.waits.values() if trigger == str(packet_id))
        found = next(led, None)
        return None if found is None else UUID(found)

    def unsent_of(self, packet_id: UUID) -> list[UnsentPacket]:
        """Return what the handler of this packet has emitted and may not be published."""
        return self._unsent.get(str(packet_id), [])

    def forget_sent(self, sent: RecentKeys[str]) -> None:
        """Leave what is published out of the next save; `sent` has the packets whose handlers emitted it."""
        self._unsent = {packet: unsent for packet, unsent in self._unsent.items() if packet not in sent}

    def end_waits(self, cause: UUID) -> None:
        """Forget the waits of a handler; saved with the value."""
        self.waits = {ask: found for ask, found in self.waits.items() if found[0] != str(cause)}

    def found_state(self) -> dict[str, Any]:
        """Return a copy of the saved state."""
        value: dict[str, Any] = orjson.loads(self._clean)
        return value

    def reset(self) -> None:
        """Forget what a failed handler changed."""
        self.value = self.found_state()
        self.waits = dict(self._clean_waits)
        self.messages = None
        self.held = []

    async def save(
        self, store: StateStore, agent_id: str, key: DeliveryKey | None, wait: SavedWait | None = None
    ) -> None:
        """Save if the value has changed, or a wait. Raises StateInvalid, StateStale, StateUnavailable."""
        encoded = _encode(self.value)
        self._is_used = False
        if encoded == self._clean and self.messages is None and wait is None:
            return
        handled = self._handled[-(MAX_HANDLED - 1) :] + ([_word(key)] if key else [])
        handled_packets = _packets(handled)
        unsent = {packet: one for packet, one in self._unsent.items() if packet in handled_packets}
        if key and self.held:
            unsent[str(key[0])] = [_unsent(one) for one in self.held]
        waits = b',"waits":%b' % orjson.dumps(self.waits) if self.waits else b""
        held = b',"unsent":%b' % orjson.dumps(unsent) if unsent else b""
        document = b'{"handled":%b,"state":%b%b%b}' % (orjson.dumps(handled), encoded, waits, held)
        saved = SavedState(document, self._revision, self.messages, wait)
        self._revision = await store.save(agent_id, self.session_id, saved)
        self.messages = None
        self._clean_waits = dict(self.waits)
        self._handled = handled
        self._handled_packets = handled_packets
        self._unsent = unsent
        self._clean = encoded


class StateCache:
    """The documents of one agent; waits for a store that is away, because without its state no handler may run."""

    def __init__(self, store: StateStore, agent_id: str) -> None:
        self._store = store
        self._agent_id = agent_id
        self._documents: OrderedDict[str, StateDocument] = OrderedDict()
        self._is_used = False
        """Whether a handler of this process has used the state: then each document is read for each delivery."""
        self._sent = RecentKeys[str](MAX_SENT)
        """The packets whose handlers have published everything."""

    async def open(self, session_id: str, *, is_read: bool = False) -> StateDocument:
        """Return the document of a session; read from the store, when `is_read`, whether handlers use it or not."""
        document = self._documents.get(session_id)
        if document is not None:
            self._documents.move_to_end(session_id)
            document.is_fresh = is_read or self._is_used
            if not document.is_fresh:
                return document
        found = await self._patiently(lambda: self._store.load(self._agent_id, session_id))
        stored, revision = found or (b"", 0)
        if document is not None and document.revision == revision:
            return document
        document = StateDocument(self._agent_id, session_id, stored, revision)
        document.forget_sent(self._sent)
        self._documents[session_id] = document
        if len(self._documents) > MAX_DOCUMENTS:
            self._documents.popitem(last=False)
        return document

    async def save(self, document: StateDocument, key: DeliveryKey | None, wait: SavedWait | None = None) -> None:
        """Save what a handler changed, and its wait. Raises StateInvalid, StateStale."""
        before = document.revision
        await self._patiently(lambda: document.save(self._store, self._agent_id, key, wait))
        self._is_used |= document.revision != before

    def note_sent(self, document: StateDocument, packet_id: UUID) -> None:
        """Note that everything is published that the handler of this packet has emitted."""
        self._sent.add(str(packet_id))
        document.forget_sent(self._sent)

    async def load_wait(self, session_id: str, cause: UUID) -> bytes | None:
        """Return the records of a handler that waits."""
        return await self._patiently(lambda: self._store.load_wait(self._agent_id, session_id, cause))

    async def save_answer(self, packet: AckPacket | NackPacket) -> None:
        """Keep an ACK or NACK for a handler that waits for it in another process, or waits again after a crash."""
        answer = SavedAnswer(packet.payload.acked_packet_id, packet.packet_id, seal(packet).body)
        await self._patiently(lambda: self._store.save_answer(self._agent_id, packet.trace.session_id, answer))

    async def load_answers(self, packet: Packet) -> list[Packet]:
        """Return the answers to a packet of this agent, as far as they are known now; ACKs first."""
        try:
            found = await self._store.load_answers(self._agent_id, packet.trace.session_id, packet.packet_id)
        except StateUnavailable as error:
            _log.warning("state_store_unavailable", agent_id=self._agent_id, reason=str(error))
            return []
        return sorted(map(parse_packet, found), key=lambda answer: answer.packet_type)

    async def forget_answers(self, age: timedelta) -> None:
        """Forget, until cancelled, the answers that no handler will wait for again."""
        while True:
            await self.forget_answers_once(age)
            await asyncio.sleep(FORGETTING_INTERVAL.total_seconds())

    async def forget_answers_once(self, age: timedelta) -> None:
        """Forget the answers that no handler will wait for again."""
        await self._patiently(lambda: self._store.forget_answers(self._agent_id, age))

    def forget(self, session_id: str) -> None:
        """Read the document again next time: another worker has saved it, or may have."""
        self._documents.pop(session_id, None)
        self._is_used = True

    async def _patiently(self, action: Callable[[], Awaitable[ResultT]]) -> ResultT:
        return await patiently(action, "state store", awaits=lambda error: isinstance(error, StateUnavailable))


def _encode(value: dict[str, Any]) -> bytes:
    if not isinstance(value, dict):
        raise StateInvalid(f"ctx.state must be a dict, not {type(value).__name__}")
    if not value:
        return b"{}"
    try:
        encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_PASSTHROUGH_DATETIME)
    except TypeError as error:
        raise StateInvalid(f"ctx.state holds something that is not JSON: {error}") from error
    # NaN and the infinities are written as null, and PostgreSQL keeps no U+0000: walked only where one may be.
    if _NUL in encoded or (b"null" in encoded and orjson.loads(encoded) != value):
        json_value(value, "ctx.state", _refusal, _as_written)
    return encoded


_NUL = b"\\u0000"


def _refusal(place: str, problem: str) -> StateInvalid:
    return StateInvalid(f"{place}: {problem}")


def _as_written(value: Any) -> Any:
    """Return what is written for a value that is not JSON. Raises TypeError."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def _unsent(held: HeldPacket) -> UnsentPacket:
    cause = held.built.cause
    body = held.publication.message.body.decode()
    return body, None if cause is None else str(cause), held.built.ordinal, held.is_remembered


def _packets(words: Iterable[str]) -> set[str]:
    return {word.partition("/")[0] for word in words}


def _word(key: DeliveryKey) -> str:
    packet_id, attempt = key
    return f"{packet_id}/{attempt}"

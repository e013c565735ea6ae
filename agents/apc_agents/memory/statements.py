"""The two tables of the memory in Postgres, statement by statement; values are JSON text here.

Every transaction says whose rows it touches (`apc.owner`). The policies of the tables hold a role without special
rights to that; the statements name the owner too, because no policy holds a superuser.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any, Literal

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from apc_agents.memory.errors import MemoryUnavailable, OwnerForeign, StaleRevision, ValueInvalid
from apc_agents.memory.storable_values import state_name
from apc_bus.database import first_line, is_passing

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
delete from apc_app.agent_state_store where agent_id = $1 and owner_id = $2 and state_key = $3 and owner = $4
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
delete from apc_app.agent_state_store
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
    found: list[asyncpg.Record] = await connection.fetch(_SELECT_STATES, agent_id, owner_id, owner, wanted)
    return found


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
    found: list[asyncpg.Record] = await connection.fetch(_SELECT_BY_PREFIX, agent_id, owner_id, owner, prefix)
    return found


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

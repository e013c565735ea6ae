"""Where an agent's state is kept: one JSON document per (agent, session), with a revision."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import asyncpg

from apc_agents.errors import StateInvalid, StateStale, StateUnavailable
from apc_agents.memory.appending import load_state, save_state
from apc_agents.memory.conversation import NewMessages
from apc_agents.memory.errors import ConversationInvalid, MemoryUnavailable, OwnerForeign, StaleRevision, ValueInvalid
from apc_agents.memory.in_memory import InMemoryMemoryStore
from apc_agents.memory.store import DEFAULT_OWNER

STATE_KEY: Final = "ctx.state"
"""Under which the memory keeps an agent's state in a session (owner_id = session_id)."""


class StateStore(Protocol):
    """Documents by (agent_id, session_id). A document is JSON text; a revision counts its saves from 1."""

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision; None when nothing was ever saved. Raises StateUnavailable."""
        ...

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
    ) -> int:
        """Replace the document if it still has this revision (0 = none yet); returns the new revision.

        `messages` are added to their conversation in the same transaction. Durable when it returns.
        Raises StateStale, StateUnavailable, StateInvalid.
        """
        ...


class MemoryStateStore:
    """State that ends with the process: for tests and for workers without a database."""

    def __init__(self, memory: InMemoryMemoryStore | None = None) -> None:
        """Keep states, and what is said in their sessions in `memory`; without one that is not kept."""
        self._states = InMemoryMemoryStore() if memory is None else memory
        self._is_memory_kept = memory is not None

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        return self._states.load_document((agent_id, session_id, STATE_KEY))

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
    ) -> int:
        """Compare and set."""
        kept = messages if self._is_memory_kept else None
        with _translated(agent_id, session_id):
            return self._states.save_document((agent_id, session_id, STATE_KEY), document, revision, kept)


class PostgresStateStore:
    """State in the memory's table apc_app.agent_state_store, under the key `ctx.state`. The pool stays the caller's."""

    def __init__(self, pool: asyncpg.Pool, owner: str = DEFAULT_OWNER) -> None:
        self._pool = pool
        self._owner = owner

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        with _translated(agent_id, session_id):
            return await load_state(self._pool, self._owner, agent_id, session_id, STATE_KEY)

    async def save(
        self,
        agent_id: str,
        session_id: str,
        document: bytes,
        revision: int,
        messages: NewMessages | None = None,
    ) -> int:
        """Compare and set in one transaction."""
        with _translated(agent_id, session_id):
            place = (agent_id, session_id, STATE_KEY)
            return await save_state(self._pool, self._owner, place, document, revision, messages)


@contextmanager
def _translated(agent_id: str, session_id: str) -> Iterator[None]:
    """Turn the memory's errors into those of a state."""
    try:
        yield
    except StaleRevision as stale:
        raise StateStale(agent_id, session_id, stale.revision) from stale
    except MemoryUnavailable as error:
        raise StateUnavailable(str(error)) from error
    except (ConversationInvalid, ValueInvalid, OwnerForeign) as error:  # such as U+0000 in a text
        raise StateInvalid(f"ctx.state of session {session_id} cannot be stored: {error}") from error

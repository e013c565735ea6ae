"""Where an agent's state is kept: one JSON document per (agent, session), with a revision."""

from typing import Protocol

import asyncpg

from apc_agents.errors import StateInvalid, StateStale, StateUnavailable


class StateStore(Protocol):
    """Documents by (agent_id, session_id). A document is JSON text; a revision counts its saves from 1."""

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """The document and its revision; None when nothing was ever saved. Raises StateUnavailable."""
        ...

    async def save(self, agent_id: str, session_id: str, document: bytes, revision: int) -> int:
        """Replace the document if it still has this revision (0 = none yet); returns the new revision.

        Durable when it returns. Raises StateStale, StateUnavailable, StateInvalid.
        """
        ...


class MemoryStateStore:
    """State that ends with the process: for tests and for workers without a database."""

    def __init__(self) -> None:
        self._documents: dict[tuple[str, str], tuple[bytes, int]] = {}

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """The document and its revision."""
        return self._documents.get((agent_id, session_id))

    async def save(self, agent_id: str, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set."""
        _, current = self._documents.get((agent_id, session_id), (b"", 0))
        if current != revision:
            raise StateStale(agent_id, session_id, revision)
        self._documents[(agent_id, session_id)] = (document, revision + 1)
        return revision + 1


AWAY = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InterfaceError,
    OSError,
)
"""The server is away, stopping or full: waiting helps."""
_LOAD = """
select document::text, revision from apc_app.agent_state_store where agent_id = $1 and session_id = $2
"""
_INSERT = """
insert into apc_app.agent_state_store (agent_id, session_id, document, revision, updated_at)
values ($1, $2, $3::text::jsonb, 1, now())
on conflict (agent_id, session_id) do nothing
returning revision
"""
_UPDATE = """
update apc_app.agent_state_store set document = $3::text::jsonb, revision = revision + 1, updated_at = now()
where agent_id = $1 and session_id = $2 and revision = $4
returning revision
"""


class PostgresStateStore:
    """State in table apc_app.agent_state_store. The pool stays the caller's."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def load(self, agent_id: str, session_id: str) -> tuple[bytes, int] | None:
        """The document and its revision."""
        try:
            row = await self._pool.fetchrow(_LOAD, agent_id, session_id)
        except AWAY as error:
            raise StateUnavailable(f"the state store does not answer: {error}") from error
        return None if row is None else (row["document"].encode(), row["revision"])

    async def save(self, agent_id: str, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set in one statement."""
        statement, arguments = (_UPDATE, (revision,)) if revision else (_INSERT, ())
        try:
            saved: int | None = await self._pool.fetchval(
                statement, agent_id, session_id, document.decode(), *arguments
            )
        except asyncpg.DataError as error:  # such as U+0000 in a text
            raise StateInvalid(f"ctx.state of session {session_id} cannot be stored: {error}") from error
        except AWAY as error:
            raise StateUnavailable(f"the state store does not answer: {error}") from error
        if saved is None:
            raise StateStale(agent_id, session_id, revision)
        return saved

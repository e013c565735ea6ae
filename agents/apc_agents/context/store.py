"""Where a context keeps what it has folded, and itself between two requests: a port, and one in memory."""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from apc_agents.context.errors import ContextStale
from apc_agents.memory.errors import StaleRevision
from apc_agents.memory.store import BaseMemoryStore


class ContextStore(Protocol):
    """Bytes by session. Each value is UTF-8 JSON and comes back byte for byte; durable when a call returns.

    A store that keeps them in JSONB stores the text as a JSON string: JSONB does not keep bytes.
    """

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the session's document and its revision; None when it was never saved."""
        ...

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Replace the document if it still has this revision (0 = none yet); returns the new revision.

        Raises:
            ContextStale: it has another one.
        """
        ...

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns by resource_id; one with the same id is replaced."""
        ...

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those of the turns that are still there, by resource_id."""
        ...

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget the turns of a session whose id begins so, by default all; none is no error."""
        ...


class InMemoryContextStore:
    """A store that ends with the process."""

    def __init__(self) -> None:
        self._documents: dict[str, tuple[bytes, int]] = {}
        self._turns: dict[str, dict[str, bytes]] = {}

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        return self._documents.get(session_id)

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set."""
        _, current = self._documents.get(session_id, (b"", 0))
        if current != revision:
            raise ContextStale(session_id, revision)
        self._documents[session_id] = (document, revision + 1)
        return revision + 1

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns."""
        self._turns.setdefault(session_id, {}).update(turns)

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those that are there."""
        kept = self._turns.get(session_id, {})
        return {resource_id: kept[resource_id] for resource_id in resource_ids if resource_id in kept}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        kept = self._turns.pop(session_id, {})
        self._turns[session_id] = {key: turn for key, turn in kept.items() if not key.startswith(prefix)}


# What an engineered context keeps, in a memory store: the port ContextStore of apc_agents.context.

DOCUMENT_KEY: Final = "context"
TURN_PREFIX: Final = "context/"


class MemoryContextStore:
    """Contexts of one agent as its agent states: owner_id = session_id, keys `context` and `context/<resource_id>`.

    The bytes are kept as a JSON string of their text, because JSONB does not keep bytes. The errors are those of the
    memory, but ContextStale for a document that somebody else has saved.
    """

    def __init__(self, memory: BaseMemoryStore, agent_id: str) -> None:
        self._memory = memory
        self._agent_id = agent_id

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        found = await self._memory.load_agent_state(self._agent_id, session_id, DOCUMENT_KEY)
        return None if found is None else (found[0].encode(), found[1])

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set."""
        try:
            return await self._memory.save_agent_state(
                self._agent_id, session_id, DOCUMENT_KEY, document.decode(), revision
            )
        except StaleRevision as stale:
            raise ContextStale(session_id, revision) from stale

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns, all or none."""
        states = {f"{TURN_PREFIX}{resource_id}": turn.decode() for resource_id, turn in turns.items()}
        if states:
            await self._memory.store_agent_states(self._agent_id, session_id, states)

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those that are there."""
        keys = [f"{TURN_PREFIX}{resource_id}" for resource_id in resource_ids]
        found = await self._memory.get_agent_states(self._agent_id, session_id, keys)
        return {key.removeprefix(TURN_PREFIX): turn.encode() for key, turn in found.items()}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        await self._memory.delete_agent_states(self._agent_id, session_id, f"{TURN_PREFIX}{prefix}")

"""Where a context outlives its process: agent states of a memory store, or the state of a handler or a dialogue."""

from collections.abc import Mapping, Sequence
from typing import Final

from apc_agents.errors import StaleRevision
from apc_agents.json_values import Stateful
from apc_agents.ports import BaseMemoryStore
from apc_minds.context.conversation import ContextStore
from apc_minds.context.turns import ContextStale

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
        saved = await self._memory.load_agent_state(self._agent_id, session_id, DOCUMENT_KEY)
        return None if saved is None else (saved[0].encode(), saved[1])

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
        turns = await self._memory.get_agent_states(self._agent_id, session_id, keys)
        return {key.removeprefix(TURN_PREFIX): turn.encode() for key, turn in turns.items()}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        await self._memory.delete_agent_states(self._agent_id, session_id, f"{TURN_PREFIX}{prefix}")


CONVERSATION: Final = "conversation"
"""The key in the state: the session's document as text, because JSONB keeps no bytes, and its revision."""


class StateContextStore:
    """The session's document in a state; the turns that leave the window in an archive beside it.

    Its owner keeps the state: a handler with its outcome, a dialogue when there is an answer. So what runs again
    finds the conversation as it was before. The archive is written at once: the same message puts the same turns there.
    """

    def __init__(self, owner: Stateful, archive: ContextStore, prefix: str = "") -> None:
        """Keep the document in `owner`; `prefix` sets its turns apart from others of the session in the archive."""
        self._owner = owner
        self._archive = archive
        self._prefix = prefix

    @property
    def revision(self) -> int:
        """How often the session was saved; 0 = never."""
        revision: int = self._owner.state.get(CONVERSATION, {}).get("revision", 0)
        return revision

    async def load(self, session_id: str) -> tuple[bytes, int] | None:
        """Return the document and its revision."""
        kept = self._owner.state.get(CONVERSATION)
        return None if kept is None else (kept["document"].encode(), kept["revision"])

    async def save(self, session_id: str, document: bytes, revision: int) -> int:
        """Compare and set. Raises ContextStale."""
        if self.revision != revision:
            raise ContextStale(session_id, revision)
        self._owner.state[CONVERSATION] = {"document": document.decode(), "revision": revision + 1}
        return revision + 1

    async def put_turns(self, session_id: str, turns: Mapping[str, bytes]) -> None:
        """Keep turns in the archive."""
        await self._archive.put_turns(session_id, {f"{self._prefix}{key}": turn for key, turn in turns.items()})

    async def get_turns(self, session_id: str, resource_ids: Sequence[str]) -> Mapping[str, bytes]:
        """Return those that the archive has."""
        turns = await self._archive.get_turns(session_id, [f"{self._prefix}{key}" for key in resource_ids])
        return {key.removeprefix(self._prefix): turn for key, turn in turns.items()}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        await self._archive.delete_turns(session_id, f"{self._prefix}{prefix}")

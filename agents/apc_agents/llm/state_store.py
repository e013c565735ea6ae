"""A conversation in a state document: kept with all else that the document holds, or not at all."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from apc_agents.context.errors import ContextStale
from apc_agents.context.store import ContextStore
from apc_agents.json_values import Stateful
from apc_agents.memory.conversation import NewMessages
from apc_agents.memory.errors import StaleRevision
from apc_agents.memory.store import BaseMemoryStore

# The state of a dialogue: what ctx.state is to a handler, in the memory of the user.

DIALOGUE: Final = "dialogue"
"""The key in the memory, with owner_id = session_id."""


class DialogueState:
    """One JSON document, kept as a whole: the conversation, and what the agent remembers of it."""

    def __init__(self, memory: BaseMemoryStore, agent_id: str, session_id: str, kept: tuple[Any, int] | None) -> None:
        self.state: dict[str, Any]
        self.state, self._revision = kept or ({}, 0)
        self._memory = memory
        self._place = (agent_id, session_id, DIALOGUE)

    @classmethod
    async def load(cls, memory: BaseMemoryStore, agent_id: str, session_id: str) -> Self:
        """Return the state as last stored; empty if there is none."""
        return cls(memory, agent_id, session_id, await memory.load_agent_state(agent_id, session_id, DIALOGUE))

    async def keep(self, messages: NewMessages | None = None) -> None:
        """Compare and set, with what was said meanwhile.

        Raises:
            ContextStale: somebody else has kept it since. OwnerForeign: it is not the user's.
        """
        try:
            self._revision = await self._memory.save_agent_state(*self._place, self.state, self._revision, messages)
        except StaleRevision as stale:
            raise ContextStale(self._place[1], stale.revision) from stale


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
        found = await self._archive.get_turns(session_id, [f"{self._prefix}{key}" for key in resource_ids])
        return {key.removeprefix(self._prefix): turn for key, turn in found.items()}

    async def delete_turns(self, session_id: str, prefix: str = "") -> None:
        """Forget them."""
        await self._archive.delete_turns(session_id, f"{self._prefix}{prefix}")

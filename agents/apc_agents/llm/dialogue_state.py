"""The state of a dialogue: what ctx.state is to a handler, in the memory of the user."""

from typing import Any, Final, Self

from apc_agents.context import ContextStale
from apc_agents.memory import BaseMemoryStore, NewMessages, StaleRevision

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

"""What an agent has kept by the verbs `remember` and `forget` in a conversation: a draft until the answer stands."""

from collections.abc import Mapping
from typing import Final, Self

from pydantic import JsonValue

from apc_agents.memory import BaseMemoryStore, ValueInvalid
from apc_agents.memory.values import encoded

REMEMBERED_PREFIX: Final = "remembered/"
MAX_KEY_BYTES: Final = 400


class DraftMemory:
    """The ActionMemory of one message. `keep` makes it durable; until then nothing has changed."""

    def __init__(
        self, memory: BaseMemoryStore, agent_id: str, session_id: str, values: Mapping[str, JsonValue]
    ) -> None:
        self.values = dict(values)
        self._memory = memory
        self._place = (agent_id, session_id)
        self._before = dict(values)

    @classmethod
    async def load(cls, memory: BaseMemoryStore, agent_id: str, session_id: str) -> Self:
        """What is kept of a session."""
        states = await memory.get_all_agent_states(agent_id, session_id)
        kept = {key.removeprefix(REMEMBERED_PREFIX): states[key] for key in states if key.startswith(REMEMBERED_PREFIX)}
        return cls(memory, agent_id, session_id, kept)

    async def remember(self, key: str, value: JsonValue) -> None:
        """Keep a value. Raises ValueInvalid: the store could not."""
        if len(key.encode()) > MAX_KEY_BYTES:
            raise ValueInvalid("key", f"it is longer than {MAX_KEY_BYTES} bytes: shorten it")
        encoded([key, value])
        self.values[key] = value

    async def forget(self, key: str) -> bool:
        """Forget it; says whether there was something."""
        return self.values.pop(key, self) is not self

    async def keep(self) -> None:
        """Make it durable. Raises MemoryStoreError."""
        for key in self._before.keys() - self.values.keys():
            await self._memory.delete_agent_state(*self._place, f"{REMEMBERED_PREFIX}{key}")
        changed = {
            f"{REMEMBERED_PREFIX}{key}": value
            for key, value in self.values.items()
            if key not in self._before or self._before[key] != value
        }
        if changed:
            await self._memory.store_agent_states(*self._place, changed)

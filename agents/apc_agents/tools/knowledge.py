"""Give a tool the knowledge relics that the response lists, and no other."""

from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from apc_agents.tools.errors import ActionError, KnowledgeOutOfScope

ReadRelic = Callable[[str], Awaitable[JsonValue]]
"""relic_id -> what it holds; raises when there is none."""


class KnowledgeScope:
    """A handle on the listed relics."""

    def __init__(self, listed: tuple[str, ...], read: ReadRelic | None) -> None:
        self.listed = listed
        """The ids that may be read."""
        self._read = read

    async def read(self, relic_id: str) -> JsonValue:
        """Return what a relic holds.

        Raises:
            KnowledgeOutOfScope: the response does not list it.
            ActionError: the agent has no reader of relics.
        """
        if relic_id not in self.listed:
            raise KnowledgeOutOfScope(relic_id, self.listed)
        if self._read is None:
            raise ActionError("this agent has no relics: give ToolRegistry(read_relic=...)")
        return await self._read(relic_id)

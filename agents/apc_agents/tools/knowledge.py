"""Give a tool the knowledge that the response lists, and no other."""

from collections.abc import Awaitable, Callable

from pydantic import JsonValue

from apc_agents.tools.errors import ActionError, KnowledgeOutOfScope

ReadKnowledge = Callable[[str], Awaitable[JsonValue]]
"""knowledge_id -> what it holds; raises when there is none."""


class KnowledgeScope:
    """A handle on the listed knowledge."""

    def __init__(self, listed: tuple[str, ...], read: ReadKnowledge | None) -> None:
        self.listed = listed
        """The ids that may be read."""
        self._read = read

    async def read(self, knowledge_id: str) -> JsonValue:
        """Return the knowledge of this id.

        Raises:
            KnowledgeOutOfScope: the response does not list it.
            ActionError: the agent has no reader of knowledge.
        """
        if knowledge_id not in self.listed:
            raise KnowledgeOutOfScope(knowledge_id, self.listed)
        if self._read is None:
            raise ActionError("this agent has no knowledge: give ToolRegistry(read_knowledge=...)")
        return await self._read(knowledge_id)

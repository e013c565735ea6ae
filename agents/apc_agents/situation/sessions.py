"""Issues session ids. Source: docs/reference/conformance/agent-context.md section 3."""

from uuid import uuid4

from apc_agents.memory import BaseMemoryStore, ConversationContext, UnknownSession


class SessionManager:
    """Begins, finds and ends the sessions whose conversations a memory store keeps."""

    def __init__(self, memory: BaseMemoryStore) -> None:
        self._memory = memory

    async def begin(self, user_id: str) -> str:
        """Return a new session of a user, with an empty conversation; returns its id, a UUID. Raises as the store."""
        session_id = str(uuid4())
        empty = ConversationContext(session_id=session_id, metadata={"user_id": user_id}, revision=0)
        await self._memory.store_conversation(session_id, user_id, empty)
        return session_id

    async def conversation(self, session_id: str) -> ConversationContext:
        """Return the conversation of a session. Raises UnknownSession."""
        found = await self._memory.retrieve_conversation(session_id)
        if found is None:
            raise UnknownSession(session_id)
        return found

    async def end(self, session_id: str) -> None:
        """Forget the session's conversation. Raises UnknownSession."""
        await self.conversation(session_id)
        await self._memory.delete_conversation(session_id)

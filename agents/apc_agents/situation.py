"""The situation of an agent: its context object, and how much a message concerns it.

Source: docs/reference/agent-context.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

from apc_agents.agent import Agent
from apc_agents.agent_context import ContextAssembler, context_message, given_context, message_of, system_load
from apc_agents.handling.handler_context import HandlerContext
from apc_agents.memory.conversation import ConversationContext, UnknownSession
from apc_agents.memory.store import BaseMemoryStore
from apc_agents.relevance import Resonance, resonance
from apc_bus.settings import RelevanceSettings, SituationSettings
from apc_contracts.agent import AgentContext, ContextMessage
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import PacketType

# Issues session ids. Source: docs/reference/conformance/agent-context.md section 3.


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
        conversation = await self._memory.retrieve_conversation(session_id)
        if conversation is None:
            raise UnknownSession(session_id)
        return conversation

    async def end(self, session_id: str) -> None:
        """Forget the session's conversation. Raises UnknownSession."""
        await self.conversation(session_id)
        await self._memory.delete_conversation(session_id)


# An agent that answers messages in their context. Source: docs/reference/conformance/agent-context.md section 1 and
# 5.


class BaseAgent(Agent, ABC):
    """An agent with one method for all that it takes; `evaluate_relevance` comes with every Agent.

    Args:
        handles: the packet types that `process_message` gets.
        min_relevance: as `Agent.on`.
        options: as Agent.
    """

    def __init__(
        self, agent_id: str, *, handles: Iterable[PacketType], min_relevance: float | None = None, **options: Any
    ) -> None:
        super().__init__(agent_id, **options)

        async def process(packet: Packet, ctx: HandlerContext) -> Sequence[Payload]:
            return await self.process_message(context_message(message_of(packet)), await ctx.snapshot())

        for packet_type in handles:
            self.on(packet_type, min_relevance=min_relevance)(process)

    @abstractmethod
    async def process_message(self, message: ContextMessage, context: AgentContext) -> Sequence[Payload]:
        """Return what the agent answers to a message: payloads to its sender, or none."""


__all__ = [
    "BaseAgent",
    "ContextAssembler",
    "RelevanceSettings",
    "Resonance",
    "SessionManager",
    "SituationSettings",
    "context_message",
    "given_context",
    "message_of",
    "resonance",
    "system_load",
]

"""An agent that answers messages in their context. Source: docs/reference/conformance/agent-context.md section 1 and
5.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from apc_agents.agent import Agent
from apc_agents.agent_context.messages import context_message, message_of
from apc_agents.handling.handler_context import HandlerContext
from apc_contracts.agent import AgentContext, ContextMessage
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import Payload
from apc_contracts.vocabulary import PacketType


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

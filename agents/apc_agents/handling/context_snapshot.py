"""The context object of one run of a handler, and the conversation that it belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from apc_agents.agent import Agent
from apc_agents.agent_context.assembler import ContextAssembler
from apc_agents.errors import Retry
from apc_agents.memory import BaseMemoryStore, MemoryUnavailable, StaleRevision
from apc_contracts.agent import AgentContext
from apc_contracts.packet import Packet

MEMORY_AWAY_AFTER = timedelta(seconds=5)
"""When a packet is tried again whose conversation could not be read or written."""


class Snapshot:
    """The context object of a packet: made when it is first asked for, and the same from then on.

    Every method raises Retry when the memory store does not answer.
    """

    def __init__(self, agent: Agent, packet: Packet, memory: BaseMemoryStore, *, is_paused: bool) -> None:
        self._agent = agent
        self._packet = packet
        self._assembler = ContextAssembler(memory)
        self._anomalies = ("session_paused",) if is_paused else ()
        self._context: AgentContext | None = None
        self._is_recorded = False

    async def preview(self) -> AgentContext:
        """Return the context object without taking the packet into the conversation.

        Raises:
            Reject: `metadata.agent_context` of the packet does not fit the protocol.
        """
        if self._context is None:
            focus = self._agent.actor.capabilities or ()
            with _retried():
                self._context = await self._assembler.assemble(
                    self._packet, self._agent.agent_id, focus=focus, anomalies=self._anomalies
                )
        return self._context

    async def take(self) -> AgentContext:
        """Return the context object; the packet now belongs to the conversation. Raises as `preview`."""
        context = await self.preview()
        if not self._is_recorded:
            await self._record(self._packet)
            self._is_recorded = True
        return context

    async def follow(self, emitted: Packet) -> None:
        """Take what the handler has emitted into the conversation, once the handled packet belongs to it."""
        if self._is_recorded and emitted.trace.session_id == self._packet.trace.session_id:
            await self._record(emitted)

    async def pass_over(self) -> None:
        """Leave the packet out of what this agent is told later."""
        with _retried():
            await self._assembler.pass_over(self._packet, self._agent.agent_id)

    async def _record(self, packet: Packet) -> None:
        with _retried():
            await self._assembler.record(packet, self._agent.agent_id)


@contextmanager
def _retried() -> Iterator[None]:
    """Raise Retry where the memory is away, or everybody writes to it: another attempt of the packet helps."""
    try:
        yield
    except (MemoryUnavailable, StaleRevision) as error:
        raise Retry(MEMORY_AWAY_AFTER, str(error)) from error

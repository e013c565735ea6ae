"""The agents of the benchmarks; each `module:agent` also runs as its own process (`apc worker`)."""

import asyncio
import time

from apc_agents import Agent, HandlerContext
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import IdeaPayload
from apc_contracts.vocabulary import PacketType
from benchmarks.support.packets import idea

SWARM = "swarm-hybrid"
FAN_OUT = 10

source = Agent("builder-1", role="builder", swarm=SWARM, rights=("operate",))
"""Opens the sessions and sends the load."""
sink = Agent("sentinel-1", role="sentinel", swarm=SWARM)
"""Takes the load."""
echo = Agent("echo-1", role="sentinel", swarm=SWARM)
"""Answers each packet with another to its sender."""


@sink.on(PacketType.IDEA)
async def _take(packet: Packet[IdeaPayload], context: HandlerContext) -> None:
    """Do nothing: what is measured is the bus."""


@echo.on(PacketType.IDEA)
async def _answer(packet: Packet[IdeaPayload], context: HandlerContext) -> IdeaPayload:
    return idea()


def crowd() -> "list[CountingAgent]":
    """Return the recipients of the fan-out."""
    return [CountingAgent(f"crowd-{number}") for number in range(FAN_OUT)]


class CountingAgent(Agent):
    """Counts the packets that reach its handler."""

    def __init__(self, agent_id: str) -> None:
        super().__init__(agent_id, role="sentinel", swarm=SWARM)
        self._received = 0
        self._changed = asyncio.Condition()
        self.on(PacketType.IDEA)(self._count)

    async def has_received(self, count: int) -> None:
        """Wait until `count` packets have reached the handler."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._received >= count)

    async def _count(self, packet: Packet[IdeaPayload], context: HandlerContext) -> None:
        self._received += 1
        async with self._changed:
            self._changed.notify_all()


class PingAgent(Agent):
    """Sends a packet to the echo for each answer that it gets, and notes how long the answer took."""

    def __init__(self, count: int = 0) -> None:
        super().__init__("ping-1", role="builder", swarm=SWARM)
        self.milliseconds: list[float] = []
        self.finished = asyncio.Event()
        self._count = count
        self._sent_at = 0.0
        self.on(PacketType.IDEA)(self._answered)

    def note_start(self) -> None:
        """Note that the first packet leaves now."""
        self._sent_at = time.perf_counter()

    async def _answered(self, packet: Packet[IdeaPayload], context: HandlerContext) -> None:
        self.milliseconds.append((time.perf_counter() - self._sent_at) * 1000)
        if len(self.milliseconds) == self._count:
            self.finished.set()
            return
        self.note_start()
        thought = idea()
        # Under its own key: two who only answer each other are a loop to the gate.
        await context.emit(thought, to=echo.agent_id, symbolic_keys=(thought.method_id,))

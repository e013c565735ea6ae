"""An agent that dies of some packets: run as a process by test_poison."""

import os
import signal
from pathlib import Path

from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

POISON = "poison"
HANDLED = "HANDLED"
"""Environment: the file that gets a line for each packet that was handled."""
MAY_CRASH = "MAY_CRASH"
"""Environment: whether the handler is marked so."""

agent = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])


@agent.on(PacketType.IDEA, may_crash=os.environ.get(MAY_CRASH) == "yes")
async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
    """As native code that runs out of memory would end: without a word."""
    if idea.payload.intent == POISON:
        os.kill(os.getpid(), signal.SIGKILL)
    note(idea)


def note(idea: Packet[IdeaPayload]) -> None:
    """Adds a line for a packet that was handled."""
    with Path(os.environ[HANDLED]).open("a") as lines:
        lines.write(f"{idea.packet_id}\n")

"""Agents of one host: run as a process by test_hosts."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Literal

from tests.support.traffic import AGENTS
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType

HANDLED = "HANDLED"
"""Environment: the file that gets a line for each packet that was handled: agent, id, intent, process and thread."""
POISON, BLOCKING = "poison", "blocking"
HOSTED = ("red-1", "blue-1")


def make(name: str, runs: Literal["loop", "thread", "process"] = "loop") -> Agent:
    """Make an agent that notes what it handles, and answers with an IDEA to the librarian."""
    agent = Agent(name, role=ROLE, swarm=AGENTS[name][0], runs=runs)

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        if idea.payload.intent == POISON:
            os.kill(os.getpid(), signal.SIGKILL)
        if idea.payload.intent == BLOCKING:
            time.sleep(1.5)  # noqa: ASYNC251 - that is the defect
        await ctx.emit(idea.payload, to="librarian")
        place = f"{os.getpid()}:{threading.current_thread().name}".replace(" ", "_")
        note(f"{name} {idea.packet_id} {idea.payload.intent} {place}\n")

    return agent


def note(line: str) -> None:
    """Add a line about a packet that was handled."""
    with Path(os.environ[HANDLED]).open("a") as lines:
        lines.write(line)


red, blue = map(make, HOSTED)
red_apart = make("red-1", "process")
red_aside = make("red-1", "thread")

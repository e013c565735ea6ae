"""Agents of a host under measurement: `benchmarks.support.hosted:m17` is made when somebody asks for it."""

import re

from apc_agents import Agent, HandlerContext
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import IdeaPayload
from apc_contracts.vocabulary import PacketType
from benchmarks.support.agents import SWARM

_made: dict[str, Agent] = {}


async def _take(packet: Packet[IdeaPayload], context: HandlerContext) -> None:
    """Do nothing: what is measured is the bus."""


def __getattr__(name: str) -> Agent:
    if not re.fullmatch(r"m\d+", name):
        raise AttributeError(name)
    if name not in _made:
        _made[name] = Agent(name, role="sentinel", swarm=SWARM)
        _made[name].on(PacketType.IDEA)(_take)
    return _made[name]


def crew(count: int) -> list[Agent]:
    """Return the agents m0, m1, … of this number."""
    return [__getattr__(f"m{number}") for number in range(count)]

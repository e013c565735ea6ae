"""An agent that notes what it handles."""

import asyncio
from typing import Any

import pytest

from apc_agents import Agent, HandlerContext
from apc_contracts import (
    IdeaPayload,
    Packet,
    PacketType,
    ReceiptKind,
)

FAST = [ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME]


class Sentinel:
    """An agent that notes what it handles; `gate` holds its handler up, `reply` makes it answer."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="hybrid", **options)
        self.handled: list[str] = []
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.reply = False
        self.agent.on(PacketType.IDEA)(self.review)

    async def review(self, idea: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload | None:
        self.started.set()
        await self.go_on.wait()
        self.handled.append(idea.payload.method_id)
        return idea.payload if self.reply else None


@pytest.fixture
def sentinel() -> Sentinel:
    return Sentinel()

"""FastStream middlewares around the handling of a packet: what they see, and what they cannot change."""

import asyncio
from typing import Any, ClassVar

import pytest
from faststream import BaseMiddleware
from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker
from tests.support.waiting import until

from apc_agents import Agent, HandlerContext
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_contracts.wire.receipts import ReceiptKind

SEEN: list[str] = []


class Outer(BaseMiddleware):
    """Notes every hook."""

    async def on_receive(self) -> None:
        assert self.msg is not None
        SEEN.append(f"receive {self.msg.type}")

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        assert self.context.get("message") is msg and msg.raw_message is self.msg
        assert msg.message_id and msg.body.startswith(b"{")
        SEEN.append("outer in")
        result = await call_next(msg)
        SEEN.append("outer out")
        return result

    async def after_processed(self, kind: Any = None, error: Any = None, trace: Any = None) -> bool:
        SEEN.append(f"processed {error}")
        return False


class Inner(BaseMiddleware):
    """Waits for longer the earlier it comes."""

    waits: ClassVar[list[float]] = [0.05, 0.0]

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        SEEN.append("inner in")
        await asyncio.sleep(self.waits.pop(0) if self.waits else 0)
        await msg.ack()  # changes nothing
        return await call_next(msg)


class Dropping(BaseMiddleware):
    """Passes nothing on."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        return None


class FailingBefore(BaseMiddleware):
    """Fails at the first delivery, before the handler."""

    calls = 0

    async def on_receive(self) -> None:
        type(self).calls += 1
        if self.calls == 1:
            raise RuntimeError("not yet")


class FailingAfter(BaseMiddleware):
    """Fails when the handler is done."""

    async def after_processed(self, kind: Any = None, error: Any = None, trace: Any = None) -> bool:
        raise RuntimeError("too late")


def agent_with(*middlewares: Any) -> tuple[Agent, list[str]]:
    """Return an agent that notes the method of each IDEA."""
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid", middlewares=middlewares)
    handled: list[str] = []

    @agent.on(PacketType.IDEA)
    async def take(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        handled.append(str(idea.packet_id))

    return agent, handled


@pytest.fixture(autouse=True)
def _fresh() -> None:
    SEEN.clear()
    Inner.waits = [0.05, 0.0]
    FailingBefore.calls = 0


async def test_middlewares_see_the_packet_in_their_order_and_do_not_change_it(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, handled = agent_with(Outer, Inner)
    stage = await make_stage(agent)
    gate = await stage.start()
    packets = [make_packet(idea()), make_packet(idea())]
    for packet in packets:
        await gate.deliver(packet)
    for packet in packets:
        await gate.ended(packet)
    await stage.end()
    assert handled == [str(packet.packet_id) for packet in packets], "the first one waited longer in a middleware"
    assert SEEN == 2 * ["receive IDEA", "outer in", "inner in"] + 2 * ["outer out", "processed None"] or SEEN == 2 * [
        *("receive IDEA", "outer in", "inner in", "outer out", "processed None")
    ]
    assert await gate.depth() == 0


async def test_a_packet_that_is_not_passed_on_is_a_dead_letter(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, handled = agent_with(Dropping)
    gate = await (await make_stage(agent)).start()
    await gate.deliver(make_packet(idea()))
    await until(gate.dead_letters)
    assert handled == [] and gate.receipts == []


async def test_a_middleware_that_fails_first_gives_the_packet_back(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, handled = agent_with(FailingBefore)
    gate = await (await make_stage(agent)).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.ended(packet)
    assert FailingBefore.calls == 2 and handled == [str(packet.packet_id)]


async def test_a_middleware_that_fails_afterwards_changes_nothing(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    agent, handled = agent_with(FailingAfter)
    stage = await make_stage(agent)
    with capture_logs() as logs:
        gate = await stage.start()
        packet = make_packet(idea())
        await gate.deliver(packet)
        await gate.ended(packet)
        await stage.end()
    assert gate.kinds(packet).count(ReceiptKind.OUTCOME) == len(handled) == 1
    assert [line["error"] for line in logs if line["event"] == "middleware_failed"] == ["RuntimeError('too late')"]
    assert await gate.depth() == await gate.dead_letters() == 0

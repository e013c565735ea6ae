"""ctx.once in a handler: made once, recorded, unknown, settled."""

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import (
    Agent,
    AgentError,
    AgentTestClient,
    EffectNotMade,
    EffectResultLost,
    EffectSettled,
    EffectUnknown,
    HandlerContext,
    HandlerFailed,
    Retry,
)
from apc_agents.effects import EffectState
from apc_contracts import Packet, PacketType, parse_response
from apc_contracts.payloads.by_type import ErrorPayload, IdeaPayload
from apc_minds.actions import ActionContext, ActionExecutor, Effect, ToolCall, ToolRegistry

Make = Callable[[], Any]


class Payer:
    """An agent whose handler makes one effect, and what it saw of it."""

    def __init__(self, make: Make, **settings: Any) -> None:
        self.agent = Agent("sentinel-1", role="sentinel", swarm="s")
        self.made = 0
        self.given: list[Any] = []

        async def count() -> Any:
            self.made += 1
            return await made if asyncio.iscoroutine(made := make()) else made

        @self.agent.on(PacketType.IDEA)
        async def pay(packet: Packet, ctx: HandlerContext) -> None:
            try:
                self.given.append(await ctx.once("charge", count, **settings))
            except Exception as error:
                self.given.append(error)
                raise


def failing(error: Exception) -> Make:
    def make() -> None:
        raise error

    return make


async def twice(payer: Payer, packet: Packet, client: AgentTestClient) -> tuple[Any, Any]:
    """Return what the handler was given in two attempts of a packet."""
    for attempt in (1, 2):
        try:
            await client.deliver(packet, attempt=attempt)
        except HandlerFailed:
            pass
    first, second = payer.given
    return first, second


async def test_a_second_attempt_gets_the_recorded_result(idea: MakeIdea, make_packet: MakePacket) -> None:
    payer = Payer(lambda: {"receipt": ("r", 1), "at": datetime(2026, 1, 2, tzinfo=UTC)})
    async with AgentTestClient(payer.agent) as client:
        first, second = await twice(payer, make_packet(idea()), client)
        assert first == second == {"receipt": ["r", 1], "at": "2026-01-02T00:00:00Z"}
        await client.deliver(make_packet(idea()))
    assert payer.made == 2


async def test_a_function_that_blocks_runs_beside_the_loop(idea: MakeIdea, make_packet: MakePacket) -> None:
    agent, threads = Agent("sentinel-1", role="sentinel", swarm="s"), []

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        assert await ctx.once("charge", lambda: threads.append(threading.current_thread())) is None

    async with AgentTestClient(agent) as client:
        await client.deliver(make_packet(idea()))
    assert threads and threads[0] is not threading.main_thread()


async def test_an_exception_leaves_the_effect_unknown(idea: MakeIdea, make_packet: MakePacket) -> None:
    payer = Payer(failing(TimeoutError("no answer\0")))
    async with AgentTestClient(payer.agent) as client:
        packet = make_packet(idea())
        first, second = await twice(payer, packet, client)
    assert isinstance(first, TimeoutError)
    assert isinstance(second, EffectUnknown)
    assert (second.effect_id.packet_id, second.effect_id.key) == (packet.packet_id, "charge")
    assert datetime.now(UTC) - second.since < timedelta(minutes=1)
    assert "TimeoutError was raised: no answer" in str(second) and "ctx.settle(key, result)" in str(second)
    assert payer.made == 1


async def test_an_unknown_effect_is_not_retried(idea: MakeIdea, make_packet: MakePacket) -> None:
    agent, runs = Agent("sentinel-1", role="sentinel", swarm="s"), []

    @agent.on(PacketType.IDEA, retries=5)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        runs.append(packet)
        await ctx.once("charge", failing(TimeoutError("no answer")))

    async with AgentTestClient(agent) as client:
        packet = make_packet(idea())
        ends = []
        for attempt in (1, 2):
            with pytest.raises(HandlerFailed):
                await client.deliver(packet, attempt=attempt)
            await client.settled()
            ends.append(
                [one.payload_as(ErrorPayload).message for one in client.emitted if one.packet_type is PacketType.ERROR]
            )
    tried_again, told = ends
    assert len(runs) == 2 and not tried_again
    assert len(told) == 1 and told[0].startswith("EffectUnknown: effect 'charge'")


@pytest.mark.parametrize(
    "error", [EffectNotMade("the service refused the connection"), Retry(reason="busy"), ConnectionError("refused")]
)
async def test_an_exception_that_says_nothing_has_happened_frees_it(
    error: Exception, idea: MakeIdea, make_packet: MakePacket
) -> None:
    payer = Payer(failing(error), not_made=(ConnectionError,))
    async with AgentTestClient(payer.agent) as client:
        first, second = await twice(payer, make_packet(idea()), client)
    assert first is error and second is error
    assert payer.made == 2


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"at": {1, 2}}, "result.at: set is not JSON"),
        (2**70, "64 bits"),
        ("x" * 300_000, "ctx.artifacts|store"),
    ],
)
async def test_a_result_that_cannot_be_kept_is_lost_but_the_effect_is_made(
    result: Any, words: str, idea: MakeIdea, make_packet: MakePacket
) -> None:
    payer = Payer(lambda: result)
    async with AgentTestClient(payer.agent) as client:
        outcomes = await twice(payer, make_packet(idea()), client)
        (kept,) = await client.effects.list()
    for outcome in outcomes:
        with pytest.raises(EffectResultLost, match=words):
            raise outcome
    assert (payer.made, kept.state) == (1, EffectState.RESULT_LOST)


async def test_a_handler_settles_or_releases_what_is_unknown(idea: MakeIdea, make_packet: MakePacket) -> None:
    agent, made, given = Agent("sentinel-1", role="sentinel", swarm="s"), [], []

    async def pay_and_lose() -> str:
        made.append("paid")
        if len(made) == 1:
            raise TimeoutError
        return "paid now"

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        try:
            given.append(await ctx.once("charge", pay_and_lose))
        except EffectUnknown:
            if packet.payload_as(IdeaPayload).method_id == "happened":
                given.append(await ctx.settle("charge", ("found", ctx.idempotency_key("charge").version)))
            else:
                await ctx.release("charge")
                given.append(await ctx.once("charge", pay_and_lose))
            with pytest.raises(EffectSettled):
                await ctx.settle("charge", "again")

    for method, expected in (("happened", ["found", 5]), ("did not happen", "paid now")):
        made.clear()
        given.clear()
        async with AgentTestClient(agent) as client:
            packet = make_packet(idea(method))
            with pytest.raises(HandlerFailed):
                await client.deliver(packet)
            for attempt in (2, 3):
                await client.deliver(packet, attempt=attempt)
        assert given == [expected, expected]


async def test_a_second_claimant_waits_for_the_first(idea: MakeIdea, make_packet: MakePacket) -> None:
    agent, made = Agent("sentinel-1", role="sentinel", swarm="s"), []
    given: list[Any] = []
    go_on = asyncio.Event()

    async def slowly() -> int:
        made.append(1)
        await go_on.wait()
        return 7

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        async def release() -> None:
            assert not given
            go_on.set()

        given.extend(await asyncio.gather(*(ctx.once("charge", slowly) for _ in range(5)), release()))

    async with AgentTestClient(agent) as client:
        await client.deliver(make_packet(idea()))
    assert given == [7] * 5 + [None]
    assert made == [1]


@pytest.mark.parametrize(
    ("key", "words"), [("", "no key of an effect"), ("x" * 201, "no key"), ("a\0b", "no key"), (7, "no key")]
)
async def test_what_is_no_key(key: Any, words: str, idea: MakeIdea, make_packet: MakePacket) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="s")

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        await ctx.once(key, lambda: None)

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.deliver(make_packet(idea()))
    assert isinstance(failed.value.__cause__, AgentError) and words in str(failed.value.__cause__)


async def test_an_effect_that_asks_for_itself_is_told_so(idea: MakeIdea, make_packet: MakePacket) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="s")

    @agent.on(PacketType.IDEA)
    async def pay(packet: Packet, ctx: HandlerContext) -> None:
        async def again() -> Any:
            return await ctx.once("charge", again)

        await ctx.once("charge", again)

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.deliver(make_packet(idea()))
    assert "is being made by the very function that asks for it" in str(failed.value.__cause__)


async def test_the_effect_of_a_sync_action_is_made_once(idea: MakeIdea, make_packet: MakePacket) -> None:
    tools, made = ToolRegistry(), []
    agent = Agent("sentinel-1", role="sentinel", swarm="s", tools=tools)
    reports: list[Any] = []

    @tools.tool()
    async def charge(call: ToolCall, amount: int) -> Any:
        """Pays, and loses the answer when the amount is large."""

        async def pay(effect: Effect) -> Any:
            made.append(effect.key)
            if amount > 10:
                raise TimeoutError
            return {"receipt": len(made)}

        return await call.once("pay", pay)

    @agent.on(PacketType.IDEA)
    async def act(packet: Packet, ctx: HandlerContext) -> None:
        actions = [{"action": "charge", "type": "tool", "params": {"amount": amount}} for amount in (7, 70)]
        response = parse_response(json.dumps({"status": "EXECUTING", "actions": actions, "stop": True}))
        report = await ActionExecutor(tools).run(response, context=ActionContext.of(ctx))
        reports.append([(one.result, one.error or "") for one in report.observations])

    async with AgentTestClient(agent) as client:
        packet = make_packet(idea())
        for attempt in (1, 2):
            await client.deliver(packet, attempt=attempt)
    assert len(made) == 2 and len(set(made)) == 2
    (first, lost), (again, unknown) = reports
    assert first == again == ({"receipt": 1}, "")
    assert lost[1].startswith("TimeoutError") and unknown[1].startswith("EffectUnknown: effect")

"""Tools that act once in a handler: what names a call, and what happens to an error that a framework hides."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from pydantic import BaseModel

from apc_agents import (
    Agent,
    AgentError,
    AgentInvalid,
    AgentTestClient,
    EffectNotMade,
    EffectUnknown,
    HandlerContext,
    HandlerFailed,
    message,
    once,
)
from apc_agents.effects import EffectState, InMemoryEffectStore
from apc_contracts.payloads.by_type import ErrorPayload


@message("order/1")
class Order(BaseModel):
    item: str


@message("bill/1")
class Bill(BaseModel):
    text: str


Work = Callable[[HandlerContext], Any]


async def handled(work: Work) -> AgentTestClient:
    """Let a handler do this; return the client for what it has made and emitted."""
    desk = Agent("desk", role="desk", swarm="shop")

    @desk.on(Order)
    async def handle(order: Order, ctx: HandlerContext) -> Bill:
        return Bill(text=str(await work(ctx)))

    async with AgentTestClient(desk) as client:
        await client.send(Order(item="lamp"))
        await client.settled()
    return client


async def test_a_call_with_the_same_arguments_is_made_once() -> None:
    paid: list[str] = []

    @once
    async def pay(order: str, euros: int = 5) -> str:
        paid.append(f"{order} {euros}")
        return f"receipt {len(paid)}"

    async def work(ctx: HandlerContext) -> list[str]:
        return [await pay("a"), await pay(order="a", euros=5), await pay("a", 6)]

    client = await handled(work)
    assert paid == ["a 5", "a 6"]
    keys = sorted(one.effect_id.key for one in await client.effects.list())
    assert len(keys) == 2 and all(key.startswith("tool/pay/") and len(key) == 41 for key in keys)


async def test_two_wanted_calls_have_keys_apart() -> None:
    paid: list[int] = []

    @once(key=lambda order, call_id: call_id)
    async def pay(order: object, call_id: str) -> int:
        paid.append(1)
        return len(paid)

    async def work(ctx: HandlerContext) -> list[int]:
        return [await pay(object(), "one"), await pay(object(), "two"), await pay(object(), "two")]

    await handled(work)
    assert len(paid) == 2


async def test_tools_of_two_classes_do_not_share_effects() -> None:
    made: list[str] = []

    class Shop:
        @staticmethod
        @once
        async def refund(order: str) -> None:
            made.append("shop")

    class Bank:
        @staticmethod
        @once
        async def refund(order: str) -> None:
            made.append("bank")

    async def work(ctx: HandlerContext) -> None:
        await Shop.refund("a")
        await Bank.refund("a")

    await handled(work)
    assert made == ["shop", "bank"]


async def test_a_plain_function_acts_from_the_thread_of_a_framework() -> None:
    paid: list[str] = []

    @once
    def pay(order: str) -> str:
        paid.append(order)
        return f"receipt of {order}"

    async def work(ctx: HandlerContext) -> tuple[str, str]:
        results: list[str] = []
        context = copy_context()
        thread = Thread(target=lambda: results.append(context.run(pay, "a")))
        first = await asyncio.to_thread(pay, "a")
        thread.start()
        await asyncio.to_thread(thread.join)
        return first, results[0]

    await handled(work)
    assert paid == ["a"]


async def test_a_coroutine_tool_acts_from_a_loop_of_the_framework() -> None:
    paid: list[str] = []

    @once
    async def pay(order: str) -> str:
        paid.append(order)
        return order

    async def work(ctx: HandlerContext) -> Any:
        return await asyncio.to_thread(lambda: asyncio.run(pay("a")))

    await handled(work)
    assert paid == ["a"]


async def cause_of(work: Work) -> str:
    with pytest.raises(HandlerFailed) as failed:
        await handled(work)
    assert isinstance(failed.value.__cause__, AgentError)
    return str(failed.value.__cause__)


async def test_what_cannot_be_named_or_would_block_is_said() -> None:
    @once
    async def pay(order: object) -> None: ...

    @once
    def wait(order: str) -> None: ...

    @once(key=lambda order: 7)  # type: ignore[arg-type, return-value]
    async def seven(order: str) -> None: ...

    async def in_loop(ctx: HandlerContext) -> None:
        wait("a")

    async def in_bare_thread(ctx: HandlerContext) -> None:
        caught: list[BaseException] = []

        def run() -> None:
            try:
                wait("a")
            except AgentError as error:
                caught.append(error)

        thread = Thread(target=run)
        thread.start()
        await asyncio.to_thread(thread.join)
        raise caught[0]

    said = await cause_of(lambda ctx: pay(object()))
    assert "the arguments of" in said and "object is not JSON" in said and "Give once(key=...)" in said
    assert "is called on the event loop of its handler" in await cause_of(in_loop)
    assert "no handler runs here" in await cause_of(in_bare_thread)
    assert "returned int: return a text" in await cause_of(lambda ctx: seven("a"))
    with pytest.raises(AgentError, match="no handler runs here"):
        await pay("a")
    with pytest.raises(AgentInvalid, match="give both"):
        once(scope="run-1")
    with pytest.raises(AgentInvalid, match="give both"):
        once(InMemoryEffectStore())


async def test_an_error_that_a_framework_hides_fails_the_handler() -> None:
    """The model is told that the payment failed, and says so; whether it was paid is not known."""

    @once
    async def pay(order: str) -> None:
        raise TimeoutError("no answer")

    async def hiding(ctx: HandlerContext) -> str:
        with suppress(TimeoutError):
            await pay("a")
        return "could not pay"

    async def turning(ctx: HandlerContext) -> str:
        try:
            await pay("a")
        except TimeoutError:
            raise RuntimeError("a tool failed") from None
        return ""

    for work in (hiding, turning):
        with pytest.raises(HandlerFailed) as failed:
            await handled(work)
        assert isinstance(failed.value.__cause__, EffectUnknown)


async def test_what_is_settled_or_did_not_happen_fails_nothing() -> None:
    tries: list[str] = []

    @once(not_made=(ConnectionError,))
    async def pay(order: str) -> str:
        tries.append(order)
        if len(tries) == 1:
            raise ConnectionError
        if len(tries) == 2:
            raise EffectNotMade("closed")
        raise TimeoutError

    async def work(ctx: HandlerContext) -> str:
        for _ in range(2):
            with suppress(ConnectionError, EffectNotMade):
                await pay("a")
        with suppress(TimeoutError):
            await pay("a")
        with pytest.raises(EffectUnknown) as unknown:
            await pay("a")
        with pytest.raises(EffectUnknown):
            ctx.check_tools()
        return str(await ctx.settle(unknown.value.effect_id.key, "found"))

    client = await handled(work)
    assert len(tries) == 3
    (kept,) = await client.effects.list()
    assert (kept.state, kept.result) == (EffectState.MADE, "found")


async def test_an_effect_within_an_effect_is_no_call_of_a_run_that_goes_on() -> None:
    """The outer effect has its result already when the handler goes on: nothing asks for the inner one."""
    made: list[str] = []
    desk = Agent("desk", role="desk", swarm="shop")

    @once
    async def pay(order: str) -> str:
        made.append(order)
        return order

    @desk.on(Order)
    async def handle(order: Order, ctx: HandlerContext) -> None:
        async def turn() -> str:
            return f"turn: {await pay(order.item)}"

        said = await ctx.once("turn-0", turn)
        assert [one.op for one in ctx.journal._made] == ["once"]
        await ctx.complete(Bill(text=str(said)))

    async with AgentTestClient(desk) as client:
        await client.send(Order(item="lamp"))
        await client.settled()
        assert not [one for one in client.emitted if isinstance(one.payload, ErrorPayload)]
    assert made == ["lamp"]


async def test_a_scope_without_a_bus_is_apart_from_others() -> None:
    store, made = InMemoryEffectStore(), list[str]()
    scope = ["run-1"]

    @once(store, scope=lambda: scope[0], lease=timedelta(seconds=1))
    async def pay(order: str) -> int:
        made.append(order)
        return len(made)

    assert [await pay("a"), await pay("a")] == [1, 1]
    scope[0] = "run-2"
    assert await pay("a") == 2
    with pytest.raises(AgentError, match="no name of a scope"):
        scope[0] = ""
        await pay("a")
    assert [one.session_id for one in await store.list()] == ["run-2", "run-1"]

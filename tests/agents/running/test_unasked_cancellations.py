"""Neither a library that cancels a worker's calls nor a handler that exits ends the worker."""

import asyncio
from typing import Any

import pytest
from tests.agents.conftest import PATIENCE, MakeIdea, MakePacket, StageMaker
from tests.agents.running.conftest import FAST, Sentinel

from apc_agents import Agent, HandlerContext, InMemoryStateStore
from apc_agents.outbox import ReceiptOutbox
from apc_agents.running import service
from apc_agents.running.service import run_worker
from apc_bus.errors import CallAborted, TaskEnded
from apc_bus.in_memory import InMemoryBus, InMemorySubscription
from apc_bus.settings import BusSettings
from apc_contracts import IdeaPayload, Packet, PacketType

LIBRARY_CALLS = [
    (InMemoryBus, "publish"),
    (InMemorySubscription, "receive"),
    (InMemorySubscription, "ack"),
    (InMemoryStateStore, "load"),
]


@pytest.mark.parametrize(("owner", "method"), LIBRARY_CALLS)
async def test_a_worker_whose_calls_are_cancelled_goes_on(
    sentinel: Sentinel,
    make_stage: StageMaker,
    make_packet: MakePacket,
    idea: MakeIdea,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
) -> None:
    stage = await make_stage(sentinel.agent)
    gate = await stage.start()
    call, strikes = getattr(owner, method), 2

    async def strike(first: Any, *given: Any, **named: Any) -> Any:
        nonlocal strikes
        # The gate of this test has calls of the same kind.
        is_ours = first is stage.bus or first in stage.bus._subscriptions or isinstance(first, InMemoryStateStore)
        if strikes and is_ours:
            strikes -= 1
            raise asyncio.CancelledError
        return await call(first, *given, **named)

    monkeypatch.setattr(owner, method, strike)
    packets = [make_packet(idea(name)) for name in ("one", "two", "three")]
    for packet in packets:
        await gate.deliver(packet)
        await gate.ended(packet)
    async with asyncio.timeout(PATIENCE):
        while strikes or await gate.depth():  # what was not acknowledged comes again
            await asyncio.sleep(0.01)
    assert stage.task is not None and not stage.task.done()
    await stage.end()
    assert await gate.depth() == 0


class Panic(BaseException):
    """As native code raises it: no Exception."""


@pytest.mark.parametrize(
    "failure",
    [asyncio.CancelledError(), SystemExit(0), GeneratorExit(), Panic("no"), BaseExceptionGroup("some", [Panic("no")])],
    ids=repr,
)
async def test_a_handler_that_ends_as_no_error_does_has_failed(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea, failure: BaseException
) -> None:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        if idea.payload.method_id == "bad":
            raise failure

    stage = await make_stage(agent)
    gate = await stage.start()
    await gate.deliver(make_packet(idea("bad")))
    await gate.until(lambda: len(gate.packets) == 1)
    good = make_packet(idea("good"))
    await gate.deliver(good)
    await gate.ended(good)
    await stage.end()
    assert gate.kinds(good) == FAST and await gate.dead_letters() == 1


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled by others", "returned"])
async def test_a_worker_one_of_whose_tasks_has_ended_ends_with_an_error(
    sentinel: Sentinel, make_stage: StageMaker, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    async def end(outbox: ReceiptOutbox) -> None:
        if is_cancelled:
            raise asyncio.CancelledError

    monkeypatch.setattr(ReceiptOutbox, "run", end)
    stage = await make_stage(sentinel.agent)
    stage.task, task = None, asyncio.create_task(stage.worker.run(stage.stop))
    with pytest.raises(CallAborted if is_cancelled else TaskEnded):
        await task


async def test_a_process_whose_worker_is_cancelled_begins_again(
    sentinel: Sentinel, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, attempts = asyncio.Event(), 0

    async def serve(*_: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            stop.set()
            return
        raise asyncio.CancelledError

    monkeypatch.setattr(service, "_serve", serve)
    settings = BusSettings.model_validate({"amqp_url": "amqp://127.0.0.1:9/"})
    await run_worker(sentinel.agent, bus_settings=settings, stop=stop)
    assert attempts == 2

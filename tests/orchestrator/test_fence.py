"""Self-fencing, from the heartbeat alone."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from apc_bus import concurrency
from apc_bus.concurrency import Health
from apc_orchestrator.lease import Fence, Questions


@pytest.mark.parametrize("seconds", range(1, 61))
def test_the_fence_follows_the_heartbeat(seconds: int) -> None:
    heartbeat = timedelta(seconds=seconds)

    fence = Fence.of(heartbeat)

    assert fence.silence_seconds == seconds, "a frozen gate leaves before the broker gives its shard away"
    assert 3 * fence.question_seconds < fence.silence_seconds, "answers may be late, and one may fail"


class SwallowingBus:
    """Answers the first question as it is cancelled, as `asyncio.wait_for` of Python 3.11 may do."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.swallowed = 0

    async def depth(self, queue: str) -> None:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self.swallowed:
                raise
            self.swallowed += 1


async def test_questions_end_though_an_answer_comes_with_the_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a gate that was told to stop then waited for its questions without end."""
    monkeypatch.setattr(concurrency, "PATIENCE", 0.05)
    bus: Any = SwallowingBus()
    async with asyncio.timeout(20), Questions(bus, Fence(1.0, 0.01), Health()).asked("apc.gate.0"):
        await bus.asked.wait()
    assert bus.swallowed == 1


class AnsweringBus:
    """A bus whose broker answers, and which remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def depth(self, queue: str) -> None:
        self.asked.append(queue)


async def test_a_process_asks_once_for_all_its_shards() -> None:
    """Silence is that of the connection, over which all of them consume."""
    bus: Any = AnsweringBus()
    questions = Questions(bus, Fence(1.0, 0.001), Health())

    async def is_asked(queue: str) -> None:
        bus.asked.clear()
        while queue not in bus.asked:
            await asyncio.sleep(0)

    async with asyncio.timeout(20), questions.asked("apc.gate.1"):
        async with questions.asked("apc.gate.0"):
            await is_asked("apc.gate.1")
            assert "apc.gate.0" not in bus.asked
        await is_asked("apc.gate.1")
        async with questions.asked("apc.gate.2"):
            await is_asked("apc.gate.1")
    async with asyncio.timeout(20), questions.asked("apc.gate.2"):
        await is_asked("apc.gate.2")


async def test_who_comes_as_the_last_one_leaves_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is being cancelled asks nothing: the shard would hear nothing, and leave."""
    monkeypatch.setattr(concurrency, "PATIENCE", 0.05)
    bus: Any = SwallowingBus()
    questions = Questions(bus, Fence(1.0, 0.01), Health())

    async def leave() -> None:
        async with questions.asked("apc.gate.0"):
            await bus.asked.wait()

    leaving = asyncio.create_task(leave())
    async with asyncio.timeout(20):
        await bus.asked.wait()
        while questions._asking is not None:
            await asyncio.sleep(0)
        bus.asked.clear()
        async with questions.asked("apc.gate.1"):
            await bus.asked.wait()
        await leaving

"""Self-fencing, from the heartbeat alone."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from apc_bus import concurrency
from apc_bus.concurrency import Health
from apc_orchestrator.lease import Fence, keep_hearing


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
    async with asyncio.timeout(20), keep_hearing(bus, "apc.gate.0", Fence(1.0, 0.01), Health()):
        await bus.asked.wait()
    assert bus.swallowed == 1

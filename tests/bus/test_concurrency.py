"""Tasks end when they are told to, whatever a library makes of a cancellation."""

import asyncio

import pytest

from apc_bus import concurrency
from apc_bus.concurrency import cancelled, first_of, running


async def test_a_cancellation_that_was_swallowed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "PATIENCE", 0.001)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while swallowed < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancelled(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_what_runs_beside_a_block_ends_with_it() -> None:
    async with running(asyncio.sleep(3600)) as task:
        assert not task.done()
    assert task.cancelled()


async def test_the_first_to_end_decides() -> None:
    lasting = asyncio.create_task(asyncio.sleep(3600))

    async def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await first_of(lasting, asyncio.sleep(3600), failing())
    assert not lasting.done(), "a task that was given goes on"
    lasting.cancel()
    await first_of(asyncio.sleep(3600), asyncio.sleep(0))

"""Tasks end when they are told to, whatever a library makes of a cancellation."""

import asyncio

import pytest

from apc_bus import concurrency
from apc_bus.concurrency import cancelled, first_of, running, unasked_cancel_fails, until_stopped
from apc_bus.errors import CallAborted, TaskEnded


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


async def test_a_cancellation_that_nobody_asked_for_is_an_error() -> None:
    async def ended_by_another() -> None:
        other = asyncio.create_task(asyncio.sleep(3600))
        other.cancel()
        with unasked_cancel_fails():
            await other

    with pytest.raises(CallAborted, match="connection was lost"):
        await ended_by_another()
    assert issubclass(CallAborted, OSError), "what waits for a broker or a database waits for this"


async def test_a_cancellation_that_was_asked_for_passes() -> None:
    async def work() -> None:
        with unasked_cancel_fails():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(TimeoutError), unasked_cancel_fails():
        async with asyncio.timeout(0):
            await work()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(work(), 0.001)

    async def failing() -> None:
        raise ZeroDivisionError

    with pytest.raises(ExceptionGroup) as group:
        async with asyncio.TaskGroup() as tasks:
            sibling = tasks.create_task(work())
            tasks.create_task(failing())
            await work()
    assert [type(error) for error in group.value.exceptions] == [ZeroDivisionError]
    assert sibling.cancelled()


async def test_the_first_to_end_by_a_cancellation_of_others_has_failed() -> None:
    async def cancelled_by_its_library() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CallAborted):
        await first_of(asyncio.sleep(3600), cancelled_by_its_library())


@pytest.mark.parametrize("is_given", [True, False], ids=["before the stop", "at the stop"])
async def test_services_run_until_they_are_told_to_stop(is_given: bool) -> None:
    stop, ends = asyncio.Event(), list[str]()

    async def service(name: str) -> None:
        try:
            await stop.wait()
            await asyncio.sleep(0)  # it drains
        finally:
            ends.append(name)

    async def returning() -> None:
        if not is_given:
            await stop.wait()

    running = asyncio.create_task(until_stopped(stop, {"a": service("a"), "b": service("b"), "c": returning()}))
    if is_given:
        with pytest.raises(TaskEnded, match=r"^c has ended without having been told to stop$"):
            await running
    else:
        await asyncio.sleep(0)
        assert not ends and not running.done()
        stop.set()
        await running
    assert sorted(ends) == ["a", "b"], "each has ended by now"


async def test_a_service_that_is_cancelled_by_others_has_failed_and_a_group_that_is_cancelled_has_not() -> None:
    async def cancelled_by_its_library() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CallAborted):
        await until_stopped(asyncio.Event(), {"a": asyncio.sleep(3600), "b": cancelled_by_its_library()})
    running = asyncio.create_task(until_stopped(asyncio.Event(), {"a": asyncio.sleep(3600)}))
    await asyncio.sleep(0)
    await cancelled(running)
    assert running.cancelled()

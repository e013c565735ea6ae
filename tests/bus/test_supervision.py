"""A task that fails is begun again, and /readyz is told why meanwhile."""

import asyncio

import pytest

from apc_bus.concurrency import Health, keep_running, run_until_success
from apc_contracts.errors import ApcError


class Fatal(Exception):
    """What no attempt mends."""


async def test_a_task_that_fails_is_told_of_and_begun_again() -> None:
    health, stop, attempts, told = Health(), asyncio.Event(), 0, []

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        told.append(health.problems)
        if attempts < 3:
            asyncio.get_running_loop().call_soon(lambda: told.append(health.problems))
            raise ValueError("no such column\nand more")
        stop.set()

    async with asyncio.timeout(10):
        await keep_running(work, task="the export", health=health, stop=stop)
    failed = ["the export has failed: no such column"]
    assert told == [[], failed, [], failed, []]
    assert health.problems == []


async def test_what_no_attempt_mends_is_raised_and_stays_told() -> None:
    health = Health()

    async def work() -> None:
        raise Fatal("the tree does not fit")

    with pytest.raises(Fatal):
        await keep_running(work, task="the backfill", health=health, stop=asyncio.Event(), fatal=(Fatal,))
    assert health.problems == ["the backfill has failed: the tree does not fit"]


async def test_told_to_stop_it_is_not_begun_again() -> None:
    health, stop, attempts = Health(), asyncio.Event(), 0
    stop.set()

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        raise ValueError

    await keep_running(work, task="the export", health=health, stop=stop)
    assert attempts == 1


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled by others", "returned"])
async def test_an_end_that_nobody_asked_for_is_begun_again(is_cancelled: bool) -> None:
    health, stop, attempts, told = Health(), asyncio.Event(), 0, []

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        asyncio.get_running_loop().call_soon(lambda: told.append(health.problems))
        if attempts == 2:
            stop.set()
        elif is_cancelled:
            raise asyncio.CancelledError

    # Not even what is fatal ends it so: nobody has to mend anything.
    async with asyncio.timeout(10):
        await keep_running(work, task="the export", health=health, stop=stop, fatal=(ApcError,))
    words = "the connection was lost" if is_cancelled else "the export has ended without having been told to stop"
    assert attempts == 2 and len(told[0]) == 1 and words in told[0][0]
    assert health.problems == []


async def test_what_is_repeated_until_it_succeeds_outlives_a_cancellation_by_others() -> None:
    health, attempts = Health(), 0

    async def work() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise asyncio.CancelledError
        return "done"

    assert await run_until_success(work, name="question", task="q", awaits=(), health=health) == "done"
    assert health.problems == []


async def test_a_task_that_is_cancelled_ends() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(keep_running(work, task="the export", health=Health(), stop=asyncio.Event()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

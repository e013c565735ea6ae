"""A task that fails is begun again, and /readyz is told why meanwhile."""

import asyncio

import pytest

from apc_bus.supervision import Health, keep_running


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

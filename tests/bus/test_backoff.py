"""Back-off: what each pause is bounded by, and what ends one."""

import asyncio

from hypothesis import given
from hypothesis.strategies import floats, integers

from apc_bus.concurrency import Backoff

seconds = floats(min_value=0.001, max_value=100)


@given(first=seconds, longest=seconds, attempts=integers(1, 40))
def test_a_pause_doubles_up_to_the_longest_less_its_jitter(first: float, longest: float, attempts: int) -> None:
    backoff = Backoff(first, longest)
    for attempt in range(attempts):
        full = min(first * 2**attempt, longest)
        announced = backoff.pause
        assert full / 2 <= announced <= full
        assert backoff.take() == announced


def test_a_success_begins_again() -> None:
    backoff = Backoff(1, 100)
    while backoff.take() < 50:
        pass
    backoff.reset()
    assert backoff.pause <= 1


def test_waiters_do_not_come_back_together() -> None:
    assert len({Backoff(1, 100).pause for _ in range(20)}) > 1


async def test_a_stop_ends_a_pause_at_once() -> None:
    stop = asyncio.Event()
    waiting = asyncio.create_task(Backoff(3600, 3600, stop).wait())
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set()
    await waiting


async def test_a_pause_ends_by_itself() -> None:
    for stop in (None, asyncio.Event()):
        await Backoff(0.001, 0.001, stop).wait()

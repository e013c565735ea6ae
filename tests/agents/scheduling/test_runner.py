"""What a process fires: on time, after an absence, beside another process, and when somebody sets its clock."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs
from tests.agents.scheduling.conftest import DAY, SEVEN, Desk

from apc_agents.scheduling import MAX_CAUGHT_UP

HOUR = timedelta(hours=1)
A_MINUTE = timedelta(minutes=1)
A_SECOND = timedelta(seconds=1)


async def test_each_firing_comes_once_and_at_its_time(desk: Desk) -> None:
    clerk = await desk.clerk(SEVEN - HOUR)
    assert await clerk.at(SEVEN - A_SECOND) == SEVEN
    assert clerk.instants == []
    assert await clerk.at(SEVEN) == SEVEN + DAY
    await clerk.at(SEVEN)
    await clerk.at(SEVEN + DAY + A_SECOND)
    assert clerk.instants == [SEVEN, SEVEN + DAY]
    assert {tick.name for tick in clerk.fired} == {"report"}


async def test_a_new_schedule_makes_up_for_nothing(desk: Desk) -> None:
    clerk = await desk.clerk(SEVEN)
    assert await clerk.at(SEVEN) == SEVEN + DAY
    assert clerk.instants == []


@pytest.mark.parametrize(("misfire", "days"), [("skip", []), ("once", [3]), ("all", [1, 2, 3])])
async def test_what_was_missed(desk: Desk, misfire: str, days: list[int]) -> None:
    await desk.clerk(SEVEN, misfire=misfire)
    late = await desk.clerk(SEVEN + 3 * DAY + HOUR, misfire=misfire)
    assert await late.at(late.now) == SEVEN + 4 * DAY
    assert late.instants == [SEVEN + day * DAY for day in days]
    await (await desk.clerk(late.now, misfire=misfire)).at(late.now)
    assert len(late.instants) == len(days)


async def test_skip_fires_what_is_late_by_seconds_only(desk: Desk) -> None:
    await desk.clerk(SEVEN, misfire="skip")
    late = await desk.clerk(SEVEN + DAY + A_MINUTE, misfire="skip")
    await late.at(late.now)
    assert late.instants == [SEVEN + DAY]


async def test_all_leaves_out_what_is_beyond_its_bound_and_says_so(desk: Desk) -> None:
    options = {"line": "* * * * *", "misfire": "all"}
    await desk.clerk(SEVEN, **options)
    late = await desk.clerk(SEVEN + (MAX_CAUGHT_UP + 5) * A_MINUTE, **options)
    with capture_logs() as logs:
        await late.at(late.now)
    assert late.instants == [SEVEN + minute * A_MINUTE for minute in range(6, MAX_CAUGHT_UP + 6)]
    assert [one["event"] for one in logs] == ["firings_left_out"]


async def test_processes_of_one_agent_share_what_was_fired(desk: Desk) -> None:
    """Two that fire in the same moment publish the same ids: the gate drops the second."""
    one, two = await desk.clerk(SEVEN - HOUR), await desk.clerk(SEVEN - HOUR)
    await one.at(SEVEN)
    assert await two.at(SEVEN + A_SECOND) == SEVEN + DAY
    assert one.instants == [SEVEN]


async def test_a_process_leaves_the_other_alone_that_fires(desk: Desk) -> None:
    one, two = await desk.clerk(SEVEN - HOUR), await desk.clerk(SEVEN - HOUR)
    async with desk.store.turn("clerk-1", "report"):
        assert await one.at(SEVEN) == SEVEN + A_SECOND
    assert await two.at(SEVEN) == SEVEN + DAY
    assert await one.at(SEVEN + A_SECOND) == SEVEN + DAY
    assert one.instants == [SEVEN]


async def test_a_firing_that_was_not_confirmed_comes_again(desk: Desk) -> None:
    clerk = await desk.clerk(SEVEN - HOUR)

    async def refuse(*_: object) -> None:
        raise ConnectionError("the broker is away")

    clerk.runner._fire = refuse
    with pytest.raises(ConnectionError):
        await clerk.at(SEVEN)
    other = await desk.clerk(SEVEN + A_SECOND)
    await other.at(other.now)
    assert other.instants == [SEVEN]


async def test_a_changed_line_begins_now(desk: Desk) -> None:
    await desk.clerk(SEVEN - HOUR)
    changed = await desk.clerk(SEVEN + HOUR, line="30 7 * * *")
    assert await changed.at(changed.now) == SEVEN + DAY + timedelta(minutes=30)
    assert changed.instants == []


async def test_a_schedule_that_a_newer_version_has_not_does_not_fire(desk: Desk) -> None:
    old = await desk.clerk(SEVEN - HOUR)
    await desk.clerk(SEVEN - HOUR, name="other")
    with capture_logs() as logs:
        await old.at(SEVEN)
    assert (old.instants, logs[0]["event"]) == ([], "schedule_replaced")


async def test_a_clock_that_jumps_ahead_and_back_stops_nothing_and_doubles_nothing(desk: Desk) -> None:
    clerk = await desk.clerk(SEVEN - HOUR)
    await clerk.at(SEVEN + 1000 * DAY)
    assert await clerk.at(SEVEN - HOUR) == SEVEN
    assert await clerk.at(SEVEN) == SEVEN + DAY
    assert clerk.instants == [SEVEN + 1000 * DAY, SEVEN]


async def test_a_clock_that_is_set_back_a_little_doubles_nothing(desk: Desk) -> None:
    clerk = await desk.clerk(SEVEN - HOUR)
    await clerk.at(SEVEN)
    await clerk.at(SEVEN - 30 * A_SECOND)
    await clerk.at(SEVEN)
    assert clerk.instants == [SEVEN]


async def test_a_process_with_a_slow_clock_fires_with_the_same_name_and_instant(desk: Desk) -> None:
    """Its Tick has the id of the first one."""
    one, slow = await desk.clerk(SEVEN - HOUR), await desk.clerk(SEVEN - 3 * HOUR)
    await one.at(SEVEN)
    await slow.at(SEVEN - HOUR)
    await slow.at(SEVEN)
    assert set(one.instants) == {SEVEN}

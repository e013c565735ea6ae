"""When a cron line fires: the same instants as a walk over every minute finds, and none in the wrong hour."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apc_agents.scheduling import CronInvalid, CronLine, parse_cron

A_MINUTE = timedelta(minutes=1)
WINDOW = timedelta(days=1.5)
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
CHANGES = [
    ("Europe/Berlin", datetime(2026, 3, 29, 1, tzinfo=UTC)),
    ("Europe/Berlin", datetime(2026, 10, 25, 1, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 7, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 15, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("Pacific/Apia", datetime(2011, 12, 30, 10, tzinfo=UTC)),  # a whole day is left out
    ("Asia/Beirut", datetime(2026, 3, 28, 22, tzinfo=UTC)),  # at midnight
    ("UTC", NEW_YEAR),
]
"""A zone, and an instant at which it changes its clock."""

minutes = st.sets(st.integers(0, 59), min_size=1, max_size=3)
hours = st.one_of(st.none(), st.sets(st.integers(0, 23), min_size=1, max_size=3), st.just({0, 1, 2, 3}))
weekdays = st.one_of(st.none(), st.sets(st.integers(0, 6), min_size=1, max_size=3))


class Line:
    """A line and, apart from the library, which local times it names."""

    def __init__(self, minutes: set[int], hours: set[int] | None, weekdays: set[int] | None) -> None:
        self.minutes, self.hours, self.weekdays = minutes, hours, weekdays
        fields = (minutes, hours, None, None, weekdays)
        self.text = " ".join("*" if one is None else ",".join(map(str, sorted(one))) for one in fields)

    def __repr__(self) -> str:
        return self.text

    def names(self, local: datetime) -> bool:
        is_hour = self.hours is None or local.hour in self.hours
        is_day = self.weekdays is None or local.isoweekday() % 7 in self.weekdays
        return local.minute in self.minutes and is_hour and is_day

    def walk(self, zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Look at each minute after `begin` up to `end`."""
        now = begin.replace(second=0, microsecond=0)
        while now < end:
            before, now = now, now + A_MINUTE
            local, was = (one.astimezone(zone).replace(tzinfo=None) for one in (now, before))
            left_out = _minutes(was + A_MINUTE, local)
            is_first = now.astimezone(zone).fold == 0
            named = self.names(local) and (is_first or self.hours is None)
            if begin < now <= end and (named or (self.hours is not None and any(map(self.names, left_out)))):
                yield now


def _minutes(begin: datetime, end: datetime) -> Iterator[datetime]:
    while begin < end:
        yield begin
        begin += A_MINUTE


lines = st.builds(Line, minutes, hours, weekdays)


def firings(line: CronLine, begin: datetime, end: datetime) -> list[datetime]:
    found = []
    while (begin := line.next_after(begin)) <= end:
        found.append(begin)
    return found


@settings(max_examples=25)
@given(lines, st.sampled_from(CHANGES), st.timedeltas(-timedelta(days=1), timedelta(days=1)))
def test_it_fires_when_a_walk_over_every_minute_says(line: Line, change: tuple[str, datetime], away: timedelta) -> None:
    name, instant = change
    begin = instant + away
    end = begin + WINDOW
    cron = parse_cron(line.text, name, NEW_YEAR)
    found = firings(cron, begin, end)
    assert found == list(line.walk(ZoneInfo(name), begin, end))
    assert found == sorted(set(found))
    backwards = list(takewhile(lambda firing: firing > begin, cron.back_from(end)))
    assert backwards[::-1] == found


def local_times(text: str, zone: str, day: datetime, count: int) -> list[str]:
    line = parse_cron(text, zone, NEW_YEAR)
    found: list[datetime] = []
    while len(found) < count:
        found.append(line.next_after(found[-1] if found else day))
    return [one.astimezone(line.zone).strftime("%d. %H:%M %Z") for one in found]


def test_a_time_that_is_skipped_fires_at_the_next_one_there_is() -> None:
    eve = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert local_times("30 2 * * *", "Europe/Berlin", eve, 2) == ["29. 03:00 CEST", "30. 02:30 CEST"]
    assert local_times("*/20 2 * * *", "Europe/Berlin", eve, 2) == ["29. 03:00 CEST", "30. 02:00 CEST"]
    assert local_times("0 2,3 * * *", "Europe/Berlin", eve, 2) == ["29. 03:00 CEST", "30. 02:00 CEST"]


def test_a_time_that_is_repeated_fires_once() -> None:
    eve = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert local_times("30 2 * * *", "Europe/Berlin", eve, 2) == ["25. 02:30 CEST", "26. 02:30 CET"]


def test_a_line_of_every_hour_goes_by_elapsed_time() -> None:
    spring, autumn = datetime(2026, 3, 29, 0, tzinfo=UTC), datetime(2026, 10, 24, 23, 45, tzinfo=UTC)
    assert local_times("30 * * * *", "Europe/Berlin", spring, 2) == ["29. 01:30 CET", "29. 03:30 CEST"]
    assert local_times("30 * * * *", "Europe/Berlin", autumn, 3) == ["25. 02:30 CEST", "25. 02:30 CET", "25. 03:30 CET"]


@pytest.mark.parametrize(
    ("text", "zone", "why"),
    [
        ("0 0 30 2 *", "UTC", "'0 0 30 2 \\*' never fires: its months have no such day"),
        ("0 0 31 4,6,9,11 *", "UTC", "never fires: its months have no such day"),
        ("61 * * * *", "UTC", "is no cron line: bad minute"),
        ("0 0 32 * *", "UTC", "is no cron line: bad day-of-month"),
        ("0 0 * * MOON", "UTC", "is no cron line: bad day-of-week"),
        ("0 7 * *", "UTC", "has 4 fields"),
        ("0 0 7 * * *", "UTC", "has 6 fields"),
        ("@daily", "UTC", "has 1 fields"),
        ("", "UTC", "has 0 fields"),
        ("0 7 * * *", "Mars/Olympus", "there is no time zone 'Mars/Olympus'"),
        ("0 7 * * *", "../../etc/passwd", "there is no time zone"),
        ("0 7 * * *", "Europe", "there is no time zone"),
        ("0 7 * * *", "", "there is no time zone"),
    ],
)
def test_what_is_no_line_or_never_fires_is_refused(text: str, zone: str, why: str) -> None:
    with pytest.raises(CronInvalid, match=why):
        parse_cron(text, zone, NEW_YEAR)


def test_a_day_that_seldom_comes_is_found() -> None:
    line = parse_cron("0 0 * 2 MON#5", "UTC", NEW_YEAR)
    assert line.next_after(NEW_YEAR) == datetime(2044, 2, 29, tzinfo=UTC)

"""Cron lines in a time zone: at which instants they fire. Pure: no clock.

A local time that does not exist, because the clock is put forward, fires at the next one that does. A local time that
comes twice, because the clock is put back, fires the first time only. A line that fires in every hour goes by elapsed
time instead: it leaves no hour out, and fires in both hours of the same name.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from heapq import merge
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_LONGEST_CHANGE = timedelta(days=1)
"""No zone has moved its clocks by more."""
_A_SECOND = timedelta(seconds=1)
_ANY_TIME = datetime(2000, 1, 1)
_FIELDS = 5


class CronInvalid(ValueError):
    """No cron line, or one that never fires; says what is wrong."""


@dataclass(frozen=True)
class CronLine:
    """A cron line of five fields, in a time zone. Made by `parse_cron`."""

    text: str
    zone: ZoneInfo

    def next_after(self, instant: datetime) -> datetime:
        """Return the first firing after an instant, in UTC. Raises CronInvalid when there is none within 50 years."""
        for firing in self._firings(instant, backwards=False):
            if firing > instant:
                return firing
        raise CronInvalid(f"{self.text!r} never fires: no date fits it")

    def back_from(self, instant: datetime) -> Iterator[datetime]:
        """Yield the firings up to an instant, itself included, the newest first."""
        for firing in self._firings(instant, backwards=True):
            if firing <= instant:
                yield firing

    @cached_property
    def _fires_hourly(self) -> bool:
        return CronSim(self.text, _ANY_TIME).hours == set(range(24))

    def _firings(self, instant: datetime, *, backwards: bool) -> Iterator[datetime]:
        """Yield the firings in order, beginning before what is asked for."""
        local = instant.astimezone(self.zone).replace(tzinfo=None)
        reach = self._reach(instant)
        begin = local + reach if backwards else local - reach
        folds = (0, 1) if self._fires_hourly else (0,)
        last = None
        for firing in merge(*(self._stream(begin, fold, backwards) for fold in folds), reverse=backwards):
            if firing != last:
                yield firing
            last = firing

    def _reach(self, instant: datetime) -> timedelta:
        """Return by how much the local times that are looked at must overlap the instant: more near a change."""
        days = (instant - _LONGEST_CHANGE, instant, instant + _LONGEST_CHANGE)
        offsets = {day.astimezone(self.zone).utcoffset() for day in days}
        return _A_SECOND if len(offsets) == 1 else _LONGEST_CHANGE

    def _stream(self, begin: datetime, fold: int, backwards: bool) -> Iterator[datetime]:
        """Yield the instants of local times; of one that comes twice the first with fold 0, the second with fold 1."""
        for local in CronSim(self.text, begin, reverse=backwards):
            firing = local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC)
            if firing.astimezone(self.zone).replace(tzinfo=None) == local:
                yield firing
            elif not self._fires_hourly:
                yield _end_of_gap(local, self.zone)


def parse_cron(text: str, timezone: str, now: datetime) -> CronLine:
    """Return a cron line that fires again after `now`. Raises CronInvalid."""
    try:
        zone = ZoneInfo(timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CronInvalid(f"there is no time zone {timezone!r}: give a name like Europe/Berlin or UTC") from error
    fields = text.split()
    if len(fields) != _FIELDS:
        raise CronInvalid(
            f"{text!r} has {len(fields)} fields: give minute, hour, day of month, month and day of week, as in "
            "'0 7 * * 1-5'"
        )
    line = CronLine(" ".join(fields), zone)
    try:
        CronSim(line.text, _ANY_TIME)
    except CronSimError as error:
        raise CronInvalid(_why_invalid(line.text, str(error))) from error
    line.next_after(now)
    return line


def _why_invalid(text: str, said: str) -> str:
    """Return what is wrong: a day that none of the months has is a valid field, and never comes."""
    minute, hour, day, _, weekday = text.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", _ANY_TIME)
    except CronSimError:
        return f"{text!r} is no cron line: {said[:1].lower()}{said[1:]}"
    if said == "Bad day-of-month":
        return f"{text!r} never fires: its months have no such day"
    return f"{text!r} is no cron line: {said[:1].lower()}{said[1:]}"


def _end_of_gap(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first instant after the change that leaves this local time out."""
    after = local.replace(tzinfo=zone, fold=0).astimezone(UTC)
    before = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
    offset = before.astimezone(zone).utcoffset()
    while after - before > _A_SECOND:
        middle = before + timedelta(seconds=(after - before) // (2 * _A_SECOND))
        if middle.astimezone(zone).utcoffset() == offset:
            before = middle
        else:
            after = middle
    return after

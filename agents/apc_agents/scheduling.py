"""Schedules of agents: cron lines whose firings come as MESSAGE tick/1 (docs/how-to/timers.md)."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from heapq import merge
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import asyncpg
from cronsim import CronSim, CronSimError
from pydantic import AwareDatetime, BaseModel, ConfigDict

from apc_agents.emission import Draft
from apc_agents.handling.inquiry import LONGEST_TTL
from apc_agents.patience import patiently
from apc_agents.typed import message
from apc_bus.crash_points import crash_point
from apc_bus.telemetry import get_logger
from apc_contracts.identity.ids import keyed_id
from apc_contracts.packet import Packet
from apc_contracts.payloads.by_type import SignalPayload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, RunPhase, Signal

if TYPE_CHECKING:
    from apc_agents.emitter import Emitter

# Cron lines in a time zone: at which instants they fire. Pure: no clock.
#
# A local time that does not exist, because the clock is put forward, fires at the next one that does. A local time that
# comes twice, because the clock is put back, fires the first time only. A line that fires in every hour goes by elapsed
# time instead: it leaves no hour out, and fires in both hours of the same name.

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


# A schedule: which of its firings are due, and the two packets of each.

TICK_SCHEMA: Final = "tick/1"
MISFIRE_GRACE = timedelta(minutes=1)
"""A firing that is later than this was missed."""
MAX_CAUGHT_UP = 1_000
"""Firings that `all` makes up for; older ones are left out."""


class Misfire(StrEnum):
    """Which firings still come, of those that were missed because no process of the agent ran."""

    SKIP = "skip"
    """None is made up for."""
    ONCE = "once"
    """The newest one comes."""
    ALL = "all"
    """Each comes, the oldest first."""


@message(TICK_SCHEMA)
class Tick(BaseModel):
    """A firing: the schedule's name, and the instant at which it was due, in UTC."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    name: str
    instant: AwareDatetime


@dataclass(frozen=True, slots=True)
class Due:
    """The firings that are due, the oldest first, and up to when that accounts for all of them."""

    firings: tuple[datetime, ...]
    until: datetime
    left_out: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """When an agent gets Ticks, and the session in which each of them comes."""

    name: str
    cron: CronLine
    misfire: Misfire
    spec: TaskSessionSpec

    def due(self, fired_until: datetime, now: datetime) -> Due:
        """Return what is due after `fired_until`, up to now."""
        missed = takewhile(lambda firing: firing > fired_until, self.cron.back_from(now))
        newest = tuple(islice(missed, MAX_CAUGHT_UP + 1 if self.misfire is Misfire.ALL else 1))
        if not newest:
            return Due((), fired_until)
        if self.misfire is Misfire.SKIP and now - newest[0] > MISFIRE_GRACE:
            return Due((), newest[0])
        return Due(newest[:MAX_CAUGHT_UP][::-1], newest[0], len(newest) > MAX_CAUGHT_UP)


def tick_id(agent_id: str, tick: Tick) -> UUID:
    """Return the id of a Tick's MESSAGE: every process of the agent derives the same."""
    return _id(agent_id, tick, "tick")


def start_draft(agent_id: str, schedule: Schedule, tick: Tick) -> Draft:
    """Return the START of the session in which a Tick comes."""
    return Draft(
        SignalPayload(signal=Signal.START, session=schedule.spec),
        to=ORCHESTRATOR,
        session_id=str(_id(agent_id, tick, "session")),
        run_phase=RunPhase.EXECUTION,
        ttl=LONGEST_TTL,
        packet_id=_id(agent_id, tick, "start"),
    )


def tick_draft(agent_id: str, tick: Tick, start: Packet) -> Draft:
    """Return the MESSAGE of a Tick, which the agent sends to itself."""
    return Draft(
        tick,
        to=agent_id,
        session_id=start.trace.session_id,
        run_phase=RunPhase.EXECUTION,
        ttl=LONGEST_TTL,
        packet_id=tick_id(agent_id, tick),
        parent=start,
    )


def _id(agent_id: str, tick: Tick, what: str) -> UUID:
    return keyed_id(agent_id, "every", tick.name, tick.instant.astimezone(UTC).isoformat(), what)


# Where it is kept up to when the firings of a schedule have been accounted for: a port, in RAM, and in Postgres.


class ScheduleStore(Protocol):
    """A row per schedule of an agent; all processes of the agent share it."""

    async def register(self, agent_id: str, schedules: Mapping[str, Schedule], now: datetime) -> None:
        """Keep the agent's schedules and no others.

        A new one, and one whose line or zone has changed, begins at `now`: it makes up for nothing.
        """

    def turn(self, agent_id: str, name: str) -> AbstractAsyncContextManager[bool]:
        """Enter with whether this process may fire now; False while another one does. A process that dies loses it."""

    async def fired_until(self, agent_id: str, name: str) -> datetime | None:
        """Return up to when all firings are accounted for; None when a newer version of the agent has no such one."""

    async def move(self, agent_id: str, schedule: Schedule, seen: datetime, until: datetime) -> None:
        """Account for the firings up to `until`, unless another process has moved it since `seen` was read."""


class InMemoryScheduleStore:
    """A ScheduleStore that ends with the process: for tests, and for workers without a database."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, tuple[str, datetime]]] = {}
        self._turns: set[tuple[str, str]] = set()

    async def register(self, agent_id: str, schedules: Mapping[str, Schedule], now: datetime) -> None:
        """Keep the agent's schedules."""
        before = self._kept.get(agent_id, {})
        kept = {}
        for name, schedule in schedules.items():
            line = f"{schedule.cron.text} {schedule.cron.zone.key}"
            known = before.get(name)
            kept[name] = known if known is not None and known[0] == line else (line, now)
        self._kept[agent_id] = kept

    @asynccontextmanager
    async def turn(self, agent_id: str, name: str) -> AsyncIterator[bool]:
        """Take the turn."""
        place = (agent_id, name)
        if place in self._turns:
            yield False
            return
        self._turns.add(place)
        try:
            yield True
        finally:
            self._turns.discard(place)

    async def fired_until(self, agent_id: str, name: str) -> datetime | None:
        """Return up to when."""
        kept = self._kept.get(agent_id, {}).get(name)
        return None if kept is None else kept[1]

    async def move(self, agent_id: str, schedule: Schedule, seen: datetime, until: datetime) -> None:
        """Account for firings."""
        kept = self._kept.get(agent_id, {})
        entry = kept.get(schedule.name)
        if entry is not None and entry[1] == seen:
            kept[schedule.name] = (entry[0], until)


_FORGET = "UPDATE apc_app.schedules SET is_removed = true WHERE agent_id = $1 AND name <> ALL ($2)"

_KEEP = """
INSERT INTO apc_app.schedules AS kept (agent_id, name, line, timezone, misfire, fired_until, next_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (agent_id, name) DO UPDATE SET
    line = excluded.line, timezone = excluded.timezone, misfire = excluded.misfire,
    fired_until = CASE WHEN (kept.line, kept.timezone) = (excluded.line, excluded.timezone)
                       THEN kept.fired_until ELSE excluded.fired_until END,
    next_at = CASE WHEN (kept.line, kept.timezone) = (excluded.line, excluded.timezone)
                   THEN kept.next_at ELSE excluded.next_at END
"""

_ADD_TURN = "INSERT INTO apc_app.schedule_turns (agent_id, name) VALUES ($1, $2) ON CONFLICT DO NOTHING"

# A row of the agent's own, not an advisory lock: anybody who logs in can hold one of any name.
_TURN = "SELECT true FROM apc_app.schedule_turns WHERE agent_id = $1 AND name = $2 FOR UPDATE SKIP LOCKED"

_FIRED_UNTIL = "SELECT fired_until FROM apc_app.schedules WHERE agent_id = $1 AND name = $2"

_MOVE = """
UPDATE apc_app.schedules SET fired_until = $4, next_at = $5
WHERE agent_id = $1 AND name = $2 AND fired_until = $3
"""

_LIST = """
SELECT agent_id, name, line, timezone, misfire, fired_until, next_at FROM apc_app.schedules
WHERE $1::text IS NULL OR agent_id = $1 ORDER BY agent_id, name
"""

ResultT = TypeVar("ResultT")


class PostgresScheduleStore:
    """A ScheduleStore in Postgres, which waits for a database that is away. The pool stays the caller's."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        self._pool = pool

    async def register(self, agent_id: str, schedules: Mapping[str, Schedule], now: datetime) -> None:
        """Keep the agent's schedules."""
        rows = [
            (agent_id, name, one.cron.text, one.cron.zone.key, one.misfire.value, now, one.cron.next_after(now))
            for name, one in sorted(schedules.items())
        ]

        async def register() -> None:
            async with self._pool.acquire() as connection, connection.transaction():
                await connection.execute(_FORGET, agent_id, list(schedules))
                await connection.executemany(_KEEP, rows)

        await _patiently(register)

    @asynccontextmanager
    async def turn(self, agent_id: str, name: str) -> AsyncIterator[bool]:
        """Take the turn: a lock of the transaction, which the server lets go when the connection ends."""

        async def take() -> tuple[AsyncExitStack, bool]:
            async with AsyncExitStack() as stack:
                connection = await stack.enter_async_context(self._pool.acquire())
                await connection.execute(_ADD_TURN, agent_id, name)
                await stack.enter_async_context(connection.transaction())
                is_ours = bool(await connection.fetchval(_TURN, agent_id, name))
                return stack.pop_all(), is_ours

        held, is_ours = await _patiently(take)
        async with held:
            yield is_ours

    async def fired_until(self, agent_id: str, name: str) -> datetime | None:
        """Return up to when."""
        until: datetime | None = await _patiently(lambda: self._pool.fetchval(_FIRED_UNTIL, agent_id, name))
        return until

    async def move(self, agent_id: str, schedule: Schedule, seen: datetime, until: datetime) -> None:
        """Account for firings."""
        following = schedule.cron.next_after(until)
        await _patiently(lambda: self._pool.execute(_MOVE, agent_id, schedule.name, seen, until, following))


async def list_schedules(pool: asyncpg.Pool, agent_id: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of an agent, or of all."""
    return [dict(row) for row in await pool.fetch(_LIST, agent_id)]


async def _patiently(action: Callable[[], Awaitable[ResultT]]) -> ResultT:
    return await patiently(action, "schedule store")


# Fires the schedules of an agent: in every process of it, each firing with the same packet ids.

LONGEST_WAIT: Final = timedelta(seconds=30)
"""After this time the clock is read again: somebody may have set it."""
CLOCK_TOLERANCE: Final = timedelta(minutes=1)
"""A clock that is behind by more than this was set back, or another process has a wrong one."""

OTHERS_TURN: Final = timedelta(seconds=1)
"""How long another process that fires is left alone, before it is looked whether it is done."""

Fire = Callable[[Schedule, Tick], Awaitable[object]]
"""Publishes a firing; it is confirmed when this returns."""

_log = get_logger("apc_agents")


def now_utc() -> datetime:
    """Return the time of this machine."""
    return datetime.now(UTC)


class ScheduleRunner:
    """Runs schedules by the clock of this machine.

    Each process of the agent may fire. They take turns, so that one firing is seldom published twice; when it is, the
    gate drops what it has judged before. `store` says up to when firings are accounted for, so that a process that
    starts knows what was missed.
    """

    def __init__(
        self,
        agent_id: str,
        schedules: Mapping[str, Schedule],
        store: ScheduleStore,
        fire: Fire,
        clock: Callable[[], datetime] = now_utc,
    ) -> None:
        self._agent_id = agent_id
        self._schedules = schedules
        self._store = store
        self._fire = fire
        self._clock = clock
        self._next: dict[str, datetime] = {}
        self._newest: datetime | None = None

    async def run(self) -> None:
        """Fire what is due, until cancelled."""
        await self.begin()
        while True:
            wait = await self.fire_due() - self._clock()
            await asyncio.sleep(min(max(wait, timedelta(0)), LONGEST_WAIT).total_seconds())

    async def begin(self) -> None:
        """Enter the schedules in the store."""
        self._next.clear()
        await self._store.register(self._agent_id, self._schedules, self._clock())

    async def fire_due(self) -> datetime:
        """Fire what is due by the clock; return when the next firing is."""
        now = self._clock()
        if self._newest is not None and now < self._newest - CLOCK_TOLERANCE:
            _log.warning("clock_set_back", agent_id=self._agent_id, from_=str(self._newest), to=str(now))
            self._next.clear()
        self._newest = now
        for name, schedule in self._schedules.items():
            if self._next.get(name, now) > now:
                continue
            async with self._store.turn(self._agent_id, name) as is_ours:
                self._next[name] = await self._fire_schedule(schedule, now) if is_ours else now + OTHERS_TURN
        return min(self._next.values())

    async def _fire_schedule(self, schedule: Schedule, now: datetime) -> datetime:
        name = schedule.name
        seen = await self._store.fired_until(self._agent_id, name)
        if seen is None:
            _log.warning("schedule_replaced", agent_id=self._agent_id, schedule=name)
            return now + LONGEST_WAIT
        if seen > now + CLOCK_TOLERANCE:
            # Firings that are fired again have the same ids.
            await self._store.move(self._agent_id, schedule, seen, now)
            return schedule.cron.next_after(now)
        due = schedule.due(seen, now)
        if due.left_out:
            _log.warning("firings_left_out", agent_id=self._agent_id, schedule=name, before=str(due.firings[0]))
        for firing in due.firings:
            await self._fire(schedule, Tick(name=name, instant=firing))
            crash_point("worker.after_tick")
            await self._store.move(self._agent_id, schedule, seen, firing)
            seen = firing
        if due.until > seen:
            await self._store.move(self._agent_id, schedule, seen, due.until)
        return schedule.cron.next_after(max(now, due.until))


def fire_with(emitter: "Emitter", agent_id: str) -> Callable[[Schedule, Tick], Awaitable[str]]:
    """Build what publishes a firing, the START of its session with its Tick, and returns the session's id."""

    async def fire(schedule: Schedule, tick: Tick) -> str:
        crash_point("worker.before_tick")
        opening = start_draft(agent_id, schedule, tick)
        start = await emitter.emit_session(opening, lambda start: tick_draft(agent_id, tick, start))
        _log.info("schedule_fired", agent_id=agent_id, schedule=tick.name, instant=tick.instant.isoformat())
        return start.trace.session_id

    return fire

"""Fires the schedules of an agent: in every process of it, each firing with the same packet ids."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import structlog

from apc_agents.emitting.emitter import Emitter
from apc_agents.scheduling.schedule import Schedule, Tick, start_draft, tick_draft
from apc_agents.scheduling.store import ScheduleStore
from apc_bus.crash_points import crash_point

LONGEST_WAIT: Final = timedelta(seconds=30)
"""After this time the clock is read again: somebody may have set it."""
CLOCK_TOLERANCE: Final = timedelta(minutes=1)
"""A clock that is behind by more than this was set back, or another process has a wrong one."""

OTHERS_TURN: Final = timedelta(seconds=1)
"""How long another process that fires is left alone, before it is looked whether it is done."""

Fire = Callable[[Schedule, Tick], Awaitable[object]]
"""Publishes a firing; it is confirmed when this returns."""

_log = structlog.get_logger("apc_agents")


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


def fire_with(emitter: Emitter, agent_id: str) -> Callable[[Schedule, Tick], Awaitable[str]]:
    """Build what publishes a firing, the START of its session with its Tick, and returns the session's id."""

    async def fire(schedule: Schedule, tick: Tick) -> str:
        crash_point("worker.before_tick")
        opening = start_draft(agent_id, schedule, tick)
        start = await emitter.emit_session(opening, lambda start: tick_draft(agent_id, tick, start))
        _log.info("schedule_fired", agent_id=agent_id, schedule=tick.name, instant=tick.instant.isoformat())
        return start.trace.session_id

    return fire

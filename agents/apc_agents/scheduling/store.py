"""Where it is kept up to when the firings of a schedule have been accounted for."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import Protocol

from apc_agents.scheduling.schedule import Schedule


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


class MemoryScheduleStore:
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
        found = self._kept.get(agent_id, {}).get(name)
        return None if found is None else found[1]

    async def move(self, agent_id: str, schedule: Schedule, seen: datetime, until: datetime) -> None:
        """Account for firings."""
        kept = self._kept.get(agent_id, {})
        found = kept.get(schedule.name)
        if found is not None and found[1] == seen:
            kept[schedule.name] = (found[0], until)

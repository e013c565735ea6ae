"""An agent with one schedule, a clock that a test sets, and what has been fired."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest

from apc_agents import Agent, HandlerContext, Tick
from apc_agents.scheduling import InMemoryScheduleStore, Schedule, ScheduleRunner, ScheduleStore

SEVEN = datetime(2027, 3, 1, 7, tzinfo=UTC)
"""A Monday."""
DAY = timedelta(days=1)


def make_agent(line: str = "0 7 * * *", agent_id: str = "clerk-1", **options: str) -> Agent:
    agent = Agent(agent_id, role="clerk", swarm="desk")

    @agent.every(line, **options)  # type: ignore[arg-type]
    async def report(tick: Tick, ctx: HandlerContext) -> None:
        await ctx.complete(recommendation=tick.instant.isoformat())

    return agent


class Clerk:
    """A process of an agent: its runner and its clock."""

    def __init__(
        self, schedules: Mapping[str, Schedule], store: ScheduleStore, now: datetime, fired: list[Tick]
    ) -> None:
        self.now = now
        self.fired = fired
        self.runner = ScheduleRunner("clerk-1", schedules, store, self._fire, lambda: self.now)

    async def _fire(self, schedule: Schedule, tick: Tick) -> None:
        self.fired.append(tick)

    async def at(self, now: datetime) -> datetime:
        """Let the clock show this; return when the next firing is."""
        self.now = now
        return await self.runner.fire_due()

    @property
    def instants(self) -> list[datetime]:
        return [tick.instant for tick in self.fired]


class Desk:
    """Starts processes of one agent over one store."""

    def __init__(self) -> None:
        self.store = InMemoryScheduleStore()
        self.fired: list[Tick] = []

    async def clerk(self, now: datetime, **options: str) -> Clerk:
        clerk = Clerk(make_agent(**options).schedules, self.store, now, self.fired)
        await clerk.runner.begin()
        return clerk


@pytest.fixture
def desk() -> Desk:
    return Desk()

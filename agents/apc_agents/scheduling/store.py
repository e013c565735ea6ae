"""Where it is kept up to when the firings of a schedule have been accounted for."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from datetime import datetime
from typing import Any, Protocol, TypeVar

import asyncpg

from apc_agents.patience import patiently
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


# Schedules in table apc_app.schedules.

_FORGET = "DELETE FROM apc_app.schedules WHERE agent_id = $1 AND name <> ALL ($2)"

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

_TURN = "SELECT pg_try_advisory_xact_lock(hashtextextended('apc_app.schedules/' || $1 || '/' || $2, 0))"

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
                await stack.enter_async_context(connection.transaction())
                is_ours = bool(await connection.fetchval(_TURN, agent_id, name))
                return stack.pop_all(), is_ours

        held, is_ours = await _patiently(take)
        async with held:
            yield is_ours

    async def fired_until(self, agent_id: str, name: str) -> datetime | None:
        """Return up to when."""
        found: datetime | None = await _patiently(lambda: self._pool.fetchval(_FIRED_UNTIL, agent_id, name))
        return found

    async def move(self, agent_id: str, schedule: Schedule, seen: datetime, until: datetime) -> None:
        """Account for firings."""
        following = schedule.cron.next_after(until)
        await _patiently(lambda: self._pool.execute(_MOVE, agent_id, schedule.name, seen, until, following))


async def list_schedules(pool: asyncpg.Pool, agent_id: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of an agent, or of all."""
    return [dict(row) for row in await pool.fetch(_LIST, agent_id)]


async def _patiently(action: Callable[[], Awaitable[ResultT]]) -> ResultT:
    return await patiently(action, "schedule store")

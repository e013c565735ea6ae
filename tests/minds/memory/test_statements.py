"""A database that goes away in the middle of a transaction, and one that works and gives up a statement each time."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import asyncpg
import pytest

from apc_agents import patience
from apc_agents.errors import MemoryUnavailable, StateUnavailable
from apc_agents.handling.state import owned
from apc_agents.patience import patiently
from apc_bus.database import open_pool, problems_of
from apc_bus.errors import StatementTooSlow
from apc_minds.memory import PostgresMemoryStore


async def test_a_connection_that_dies_between_two_steps_is_a_store_that_is_away(postgres_url: str) -> None:
    """Found by the soak: taken for a fault of the handler, it cost healthy packets their delivery."""
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        with pytest.raises(MemoryUnavailable, match="another operation"):
            async with owned(pool, "agent"):
                raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")


async def test_a_statement_that_is_always_too_slow_ends(app_database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a search of a very large memory: its handler fails, and the others go on."""
    monkeypatch.setattr(patience, "SECONDS", 0.0)
    pool = await open_pool(app_database_url, max_size=2, command_timeout=timedelta(milliseconds=200))
    store = PostgresMemoryStore(pool, is_patient=True)
    async with pool.acquire() as other, other.transaction():
        await other.execute("LOCK TABLE apc_app.conversation_history")
        async with asyncio.timeout(20):
            with pytest.raises(MemoryUnavailable) as caught:
                await store.search_conversations("u-1", "word")
    assert isinstance(caught.value.__cause__, StatementTooSlow)
    assert problems_of(pool) == []
    assert await store.search_conversations("u-1", "word") == []
    await pool.close()


def refusing(error: Exception, cause: Exception | None, times: int) -> tuple[Callable[[], Awaitable[int]], list[int]]:
    """Return an action that fails so often, and its attempts."""
    attempts: list[int] = []

    async def act() -> int:
        attempts.append(len(attempts))
        if len(attempts) <= times:
            raise error from cause
        return len(attempts)

    return act, attempts


GIVEN_UP = [
    asyncpg.QueryCanceledError("slow"),
    asyncpg.OutOfMemoryError("work_mem"),
    asyncpg.exceptions.ConfigurationLimitExceededError("temp_file_limit"),
    StatementTooSlow("slow"),
]
AWAY = [ConnectionRefusedError("no"), TimeoutError(), asyncpg.TooManyConnectionsError("full"), None]


@pytest.mark.parametrize("cause", GIVEN_UP)
async def test_what_is_given_up_each_time_is_tried_a_few_times(
    cause: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.0)
    monkeypatch.setattr(patience, "LONGEST_WAIT", 0.001)
    act, attempts = refusing(StateUnavailable("no"), cause, 100)
    with pytest.raises(StateUnavailable):
        await patiently(act, "store", awaits=lambda error: isinstance(error, StateUnavailable))
    assert len(attempts) == patience.ATTEMPTS


@pytest.mark.parametrize("cause", AWAY)
async def test_a_store_that_is_away_is_waited_for(cause: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SECONDS", 0.0)
    monkeypatch.setattr(patience, "LONGEST_WAIT", 0.001)
    act, _ = refusing(StateUnavailable("no"), cause, 50)
    assert await patiently(act, "store", awaits=lambda error: isinstance(error, StateUnavailable)) == 51


async def test_a_store_that_gives_up_for_a_short_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "LONGEST_WAIT", 0.001)
    act, _ = refusing(asyncpg.DeadlockDetectedError("again"), None, 50)
    assert await patiently(act, "store") == 51

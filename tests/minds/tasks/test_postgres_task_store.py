"""The task store in Postgres: the suite of every store, and what only a database does."""

import asyncio
from collections.abc import AsyncIterator, Collection
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue
from tests.minds.tasks.test_task_store import NO_LEASE, TaskStoreSuite, added, claimed, never
from tests.minds.workshop import Workshop
from tests.support.waiting import until

from apc_agents import Agent, WorkerSettings
from apc_agents.effects import InMemoryEffectStore
from apc_agents.errors import StateUnavailable
from apc_agents.handling.state import InMemoryStateStore
from apc_agents.running.host import Host
from apc_agents.running.service import Stores
from apc_agents.scheduling import InMemoryScheduleStore
from apc_agents.task_port import TaskStore
from apc_bus.concurrency import running
from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.topology import AgentQueues, build_topology
from apc_minds.actions import Effect, ValueUnserialisable
from apc_minds.tasks.postgres import PostgresTaskStore

WRITE_ROW = """
INSERT INTO apc_app.agent_state_store (agent_id, owner_id, state_key, state_value, owner)
VALUES ($1, 's', 'k', '{}', 'o')
"""


@pytest.mark.postgres
class TestPostgresTaskStore(TaskStoreSuite):
    @pytest.fixture
    async def store(self, app_database_url: str) -> AsyncIterator[TaskStore]:
        pool = await open_pool(app_database_url)
        yield PostgresTaskStore(pool)
        pool.terminate()

    async def test_what_is_written_with_an_effect_is_written_once(self, store: PostgresTaskStore) -> None:
        task = await added(store)
        await claimed(store)
        started, go_on = asyncio.Event(), asyncio.Event()

        async def write(effect: Effect) -> JsonValue:
            await effect.connection.execute(WRITE_ROW, effect.key)
            started.set()
            await go_on.wait()
            return "written"

        first = asyncio.create_task(store.once(task.task_id, 1, "row", write))
        await started.wait()
        # A second attempt begins while the first one still writes: it waits, and finds the effect made.
        await store.renew(task.task_id, 1, NO_LEASE)
        await claimed(store)
        second = asyncio.create_task(store.once(task.task_id, 2, "row", never))
        await _until_somebody_waits(store)
        go_on.set()
        assert [await first, await second] == ["written", "written"]

    async def test_an_effect_that_is_cut_off_leaves_nothing(self, store: PostgresTaskStore) -> None:
        task = await added(store)
        await claimed(store)
        started = asyncio.Event()

        async def write(effect: Effect) -> JsonValue:
            await effect.connection.execute(WRITE_ROW, effect.key)
            started.set()
            return await asyncio.Event().wait()

        cut = asyncio.create_task(store.once(task.task_id, 1, "row", write))
        await started.wait()
        cut.cancel()
        await asyncio.wait([cut])
        assert await store.once(task.task_id, 1, "row", _counted(store)) == 0

    async def test_a_value_that_postgres_cannot_store_is_refused(self, store: TaskStore) -> None:
        with pytest.raises(ValueUnserialisable, match="action build: cannot be stored"):
            await added(store, params={"text": "\0"})

    async def test_a_store_that_is_away_says_so_or_waits(self, app_database_url: str) -> None:
        pool = await open_pool(app_database_url)
        await pool.close()
        with pytest.raises(StateUnavailable):
            await PostgresTaskStore(pool, is_patient=False).get(uuid4())


def _counted(store: PostgresTaskStore) -> Any:
    async def count(effect: Effect) -> JsonValue:
        found: int = await effect.connection.fetchval("SELECT count(*) FROM apc_app.agent_state_store")
        return found

    return count


async def _until_somebody_waits(store: PostgresTaskStore) -> None:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

    async def does_wait() -> bool:
        return bool(await store._pool.fetchval(waiting))

    await until(does_wait)


@pytest.mark.postgres
async def test_a_host_asks_once_for_the_tasks_that_others_leave_for_its_agents(
    app_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[set[str]]()
    ask = PostgresTaskStore.with_work

    async def with_work(store: PostgresTaskStore, agent_ids: Collection[str]) -> Collection[str]:
        asked.append(set(agent_ids))
        return await ask(store, agent_ids)

    monkeypatch.setattr(PostgresTaskStore, "with_work", with_work)
    workshops = {name: Workshop() for name in ("one", "two")}
    agents = [Agent(name, role="r", swarm="s", tools=made.tools) for name, made in workshops.items()]
    settings = WorkerSettings(data_dir=tmp_path, task_poll=timedelta(seconds=0.05))
    broker, stop = InMemoryBroker(build_topology(1, [AgentQueues("any", "s", host="h")])), asyncio.Event()
    pool = await open_pool(app_database_url)
    stores = Stores(pool, InMemoryStateStore(), InMemoryEffectStore(), None, InMemoryScheduleStore())
    host = Host("h", agents, broker.connect("host.h"), stores, settings)
    async with running(host.run(stop)) as work:
        await until(lambda: len(asked) > 2)
        assert all(names == {"one", "two"} for names in asked)
        other = PostgresTaskStore(pool, "two")  # of another process: nobody here is told of what it keeps
        await added(other, agent_id="two", action="note", params={"value": 7})
        await until(lambda: workshops["two"].calls == [7])
        assert workshops["one"].calls == []
        stop.set()
        await asyncio.wait([work])
    pool.terminate()

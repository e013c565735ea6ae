"""A worker process is killed in the middle of a task: the task ends once after the restart, its effect counts once."""

import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest
from tests.integration.agents.counting_agent import GO_ON, HANGS_IN_EFFECT, STEPS, WALK, WALKS
from tests.integration.agents.worker_process import WorkerProcess
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_agents.task_port import Task, TaskStatus
from apc_minds.tasks.postgres import PostgresTaskStore

KILLS = 4
"""Less than MAX_LOST_LEASES: no task may be given up."""
EFFECTS = "SELECT count(*) AS all, count(DISTINCT key) AS different FROM counted"

TOLD = """
SELECT packets.packet_id, packets.root_packet_id, bodies.packet #> '{metadata,task}' AS task
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'red-1' AND packets.channel = 'INTRA_AGENT' ORDER BY seq
"""


def reached(store: PostgresTaskStore, progress: float) -> Callable[[], Awaitable[bool]]:
    """Return a condition: the counting task has come so far."""

    async def holds() -> bool:
        return any(task.progress >= progress for task in await by_age(store))

    return holds


async def by_age(store: PostgresTaskStore) -> list[Task]:
    return list(reversed(await store.list()))


@pytest.mark.long
@pytest.mark.parametrize("hangs_in_effect", [False, True])
async def test_a_task_of_a_killed_worker_ends_once_and_its_effect_counts_once(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, hangs_in_effect: bool
) -> None:
    go_on = tmp_path / "go-on"
    settings = {GO_ON: str(go_on), "APC_TASK_LEASE": "PT2S"}
    worker = WorkerProcess("counting_agent:agent", amqp_vhost_url, postgres_url, tmp_path, **settings)
    store = PostgresTaskStore(house.pool)
    trigger = make_packet("librarian", make_idea(), ("red-1",), parent=house.opening)
    await house.pool.execute("CREATE TABLE counted (key text)")
    async with house.persister(), house.gate():
        await house.open_session()
        async with worker.running(**({HANGS_IN_EFFECT: "1"} if hangs_in_effect else {})) as process:
            await house.agents.publish(trigger)
            await until(reached(store, 0.2 if hangs_in_effect else 0.5))
            process.kill()
            assert await process.wait() == -signal.SIGKILL
        assert [task.status for task in await by_age(store)] == [TaskStatus.RUNNING, TaskStatus.PENDING]
        assert await house.pool.fetchval("SELECT count(*) FROM counted") == (0 if hangs_in_effect else 1)
        go_on.touch()

        async def have_ended() -> bool:
            return {task.status for task in await by_age(store)} == {TaskStatus.SUCCEEDED}

        async def are_logged() -> bool:
            rows = await house.pool.fetch(TOLD)
            open_events = "SELECT count(*) FROM apc_app.agent_task_events"
            return bool(len(rows) == await house.pool.fetchval(open_events))

        async with worker.running():
            await until(have_ended)
            await until(are_logged)
        await until(house.has_nothing_open)
    count, double = await by_age(store)
    assert await house.pool.fetchval("SELECT count(*) FROM counted") == 1
    assert (count.attempt, count.lost_leases, count.result) == (2, 1, 1)
    assert (double.attempt, double.depends_on, double.result) == (1, (count.task_id,), 2)
    rows = await house.pool.fetch(TOLD)
    assert {row["root_packet_id"] for row in rows} == {trigger.trace.root_packet_id}
    told = [orjson.loads(row["task"]) for row in rows]
    ends = [task["action_id"] for task in told if task["status"] == "SUCCEEDED"]
    assert ends == ["count", "action_2"]
    runs = [(task["attempt"], task["progress"]) for task in told if task["action_id"] == "count"]
    assert runs == sorted(runs)
    assert runs[-1] == (2, 1.0)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(5))
async def test_tasks_of_a_worker_that_is_killed_at_any_moment_end_once(
    house: House, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, seed: int
) -> None:
    """SIGKILL again and again, wherever the tasks are: each ends once, and each effect of each step counts once."""
    chance = random.Random(seed)
    worker = WorkerProcess(
        "counting_agent:agent", amqp_vhost_url, postgres_url, tmp_path, APC_TASK_LEASE="PT2S", GO_ON=""
    )
    store = PostgresTaskStore(house.pool)
    await house.pool.execute("CREATE TABLE counted (key text)")
    trigger = make_packet("librarian", make_idea(WALK), ("red-1",), parent=house.opening)

    def have_made(effects: int) -> Callable[[], Awaitable[bool]]:
        async def holds() -> bool:
            return bool((await house.pool.fetchrow(EFFECTS))["all"] >= effects)

        return holds

    async def have_ended() -> bool:
        tasks = await by_age(store)
        return len(tasks) == WALKS and all(task.finished_at is not None for task in tasks)

    async def are_told() -> bool:
        waiting = "SELECT count(*) FROM apc_app.agent_task_events WHERE announced_at IS NULL"
        return not await house.pool.fetchval(waiting)

    async with house.persister(), house.gate():
        await house.open_session()
        await house.agents.publish(trigger)
        for number in range(KILLS):
            async with worker.running() as process:
                share = WALKS * STEPS * number // (KILLS + 1)
                await until(have_made(share + chance.randint(1, WALKS * STEPS // (KILLS + 1))), 120)
                process.kill()
                assert await process.wait() == -signal.SIGKILL
        async with worker.running():
            await until(have_ended, 120)
            await until(are_told, 60)
        await until(house.has_nothing_open, 60)
    tasks = await by_age(store)
    assert [(task.status, task.result) for task in tasks] == [(TaskStatus.SUCCEEDED, STEPS)] * WALKS
    counted = await house.pool.fetchrow(EFFECTS)
    assert (counted["all"], counted["different"]) == (WALKS * STEPS, WALKS * STEPS)
    assert sum(task.lost_leases for task in tasks) >= 1
    told = [orjson.loads(row["task"]) for row in await house.pool.fetch(TOLD)]
    ends = [task["task_id"] for task in told if task["status"] == "SUCCEEDED"]
    assert sorted(ends) == sorted(str(task.task_id) for task in tasks)

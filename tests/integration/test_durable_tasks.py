"""A worker process is killed in the middle of a task: the task ends once after the restart, its effect counts once."""

import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from apc_agents.actions.tasks import PostgresTaskStore, Task, TaskStatus
from apc_orchestrator.testing import make_idea, make_packet, until

from .counting_agent import GO_ON, HANGS_IN_EFFECT
from .worker_process import WorkerProcess

TOLD = """
SELECT packets.packet_id, packets.root_packet_id, bodies.packet #> '{metadata,task}' AS task
FROM apc_log.agent_packets packets JOIN apc_log.packets bodies USING (shard, seq)
WHERE packets.sender_agent_id = 'red-1' AND packets.channel = 'INTRA_AGENT' ORDER BY seq
"""


def reached(store: PostgresTaskStore, progress: float) -> Callable[[], Awaitable[bool]]:
    """A condition: the counting task has come so far."""

    async def holds() -> bool:
        return any(task.progress >= progress for task in await by_age(store))

    return holds


async def by_age(store: PostgresTaskStore) -> list[Task]:
    return list(reversed(await store.list()))


@pytest.mark.parametrize("hangs_in_effect", [False, True])
async def test_a_task_of_a_killed_worker_ends_once_and_its_effect_counts_once(
    house: Any, amqp_vhost_url: str, postgres_url: str, tmp_path: Path, hangs_in_effect: bool
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

"""`apc task`, as an operator runs it beside the services."""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from tests.support.apc_command import ApcCommand

from apc_agents.task_port import NewTask, TaskSpec
from apc_bus.database import open_pool
from apc_contracts import ActionType, SecurityLevel
from apc_minds.tasks.postgres import PostgresTaskStore


def spec(action_id: str) -> TaskSpec:
    return TaskSpec(
        action_id=action_id,
        action="build_tool",
        type=ActionType.TOOL,
        params={"target": "//main:app"},
        security_level=SecurityLevel.USER,
    )


async def test_an_operator_looks_at_tasks_and_cancels_one(postgres_url: str, tmp_path: Path) -> None:
    apc = ApcCommand(tmp_path)

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(apc, "task", *arguments, given={"APC_DATABASE_URL": postgres_url})

    ids = [uuid4(), uuid4()]
    pool = await open_pool(postgres_url)
    store = PostgresTaskStore(pool)
    for task_id, needs in ((ids[0], ()), (ids[1], (ids[0],))):
        await store.add(NewTask(task_id, "builder-1", "s-1", spec(f"t{task_id.int % 100}"), needs))
    await pool.close()
    newest, oldest = json.loads((await run("list", "--agent", "builder-1")).stdout)
    assert [UUID(newest["task_id"]), UUID(oldest["task_id"])] == [ids[1], ids[0]]
    shown = json.loads((await run("show", str(ids[0]))).stdout)
    assert (shown["action"], shown["params"], shown["status"]) == ("build_tool", {"target": "//main:app"}, "PENDING")
    cancelled = json.loads((await run("cancel", str(ids[0]), "--reason", "wrong target")).stdout)
    assert (cancelled["status"], cancelled["error"]) == ("CANCELLED", "wrong target")
    assert json.loads((await run("purge", "--days", "1", "--yes")).stdout) == {"tasks": 0}
    pool = await open_pool(postgres_url)
    await pool.execute(
        "UPDATE apc_app.agent_tasks SET finished_at = now() - interval '40 days' WHERE task_id = $1", ids[0]
    )
    await pool.execute("UPDATE apc_app.agent_task_events SET announced_at = now()")
    await pool.execute("UPDATE apc_app.agent_tasks SET depends_on = '{}' WHERE task_id = $1", ids[1])
    await pool.close()
    assert json.loads((await run("purge", "--days", "30", "--yes")).stdout) == {"tasks": 1}
    (left,) = json.loads((await run("list")).stdout)
    assert UUID(left["task_id"]) == ids[1]
    await run("cancel", str(ids[1]))
    for failed, words in (
        (await run("cancel", str(ids[1])), f"task {ids[1]} has ended already: CANCELLED"),
        (await run("show", str(ids[0])), "there is no task"),
        (await run("purge", "--days", "0", "--yes"), "--days"),
        (await run("show", "a7b3c9d1-e4f6-4g8h-9i1j-k2l3m4n5o6p7"), "is no task_id"),
        (await run("list", "--status", "asleep"), "use one of PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED"),
    ):
        assert failed.returncode == 2 and words in failed.stderr and len(failed.stderr.splitlines()) == 1

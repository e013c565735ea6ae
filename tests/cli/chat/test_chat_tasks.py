"""A task that was started in a chat, whose process is then killed: the next chat of the session ends it, once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from tests.support.traffic import until

from apc_agents.task_port import Task, TaskStatus
from apc_bus.database import open_pool
from apc_minds.tasks.postgres import PostgresTaskStore

from .slow_agent import GO_ON


class Chat:
    """`apc chat` through a pipe."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def say(self, line: str) -> Any:
        """Return what it answers."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{line}\n".encode())
        return orjson.loads(await self.process.stdout.readline())


@asynccontextmanager
async def chatting(database_url: str, folder: Path) -> AsyncIterator[Chat]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("APC_")}
    settings = {
        "APC_DATABASE_URL": database_url,
        "APC_DATA_DIR": str(folder),
        "APC_TASK_LEASE": "PT2S",
        GO_ON: str(folder / "go-on"),
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apc_cli", "chat", "--agent", "slow_agent:agent", "--session", "s-1",
        cwd=Path(__file__).parent, env=inherited | settings,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert orjson.loads(await process.stdout.readline())["session"] == "s-1"
        yield Chat(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.timeout(300)
async def test_a_task_of_a_killed_chat_ends_once_in_the_next(postgres_url: str, tmp_path: Path) -> None:
    pool = await open_pool(postgres_url, max_size=2)
    store = PostgresTaskStore(pool)
    await pool.execute("CREATE TABLE counted (key text)")

    async def the_task() -> Task | None:
        return next(iter(await store.list()), None)

    async def is_half_done() -> bool:
        task = await the_task()
        return task is not None and task.progress >= 0.5

    async def has_ended() -> bool:
        task = await the_task()
        return task is not None and task.status is TaskStatus.SUCCEEDED

    async with chatting(postgres_url, tmp_path) as chat:
        assert (await chat.say("start"))["response"] == "Started."
        await until(is_half_done, 60)
        assert (await chat.say("how is it?"))["response"] == "It goes on."
        chat.process.kill()
        assert await chat.process.wait() == -signal.SIGKILL
    (tmp_path / "go-on").touch()
    async with chatting(postgres_url, tmp_path) as chat:
        await until(has_ended, 60)
        (shown,) = (await chat.say("/tasks"))["result"]
        assert (shown["status"], shown["result"]) == ("SUCCEEDED", "counted")
        assert (await chat.say("how is it now?"))["response"] == "It has ended."
        history = (await chat.say("/history"))["result"]
    assert [one["content"] for one in history if one["role"] == "user"] == ["start", "how is it?", "how is it now?"]
    task = await the_task()
    assert task is not None and (task.attempt, task.lost_leases) == (2, 1)
    assert await pool.fetchval("SELECT count(*) FROM counted") == 1
    await pool.close()

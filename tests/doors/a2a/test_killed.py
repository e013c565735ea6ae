"""Kill -9 of doors, gate and worker while tasks are begun, at work and asked: every task ends once, none is lost."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.doors.a2a.conftest import A2AClient, made, state_of
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.broker, pytest.mark.postgres, pytest.mark.timeout(400)]

TEAM = "tests.doors.a2a.desk_team:team"
TASKS = 8
SPOKEN = {"A2A-Version": "1.0", "A2A-Extensions": "urn:apc-bus:a2a:repeats:v1"}


@asynccontextmanager
async def started(environment: dict[str, str], word: str, *arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """A command that has written a line with this word to stderr, and the line; killed at the end."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "apc_cli", *arguments, env=os.environ | environment, stderr=PIPE, stdout=PIPE
    )
    assert running.stderr is not None
    try:
        seen = []
        async for line in running.stderr:
            seen.append(line.decode())
            if word in seen[-1]:
                break
        else:
            raise AssertionError("".join(seen))
        reading = asyncio.create_task(running.stderr.read())
        yield running, seen[-1]
        reading.cancel()
    finally:
        children = psutil.Process(running.pid).children(recursive=True) if running.returncode is None else []
        for one in (psutil.Process(running.pid), *children) if running.returncode is None else ():
            one.kill()
        await running.wait()


def kill_child(system: Process, word: str) -> None:
    """Kill -9 the process of a supervised service or agent; its supervisor starts another one."""
    alive = [one for one in psutil.Process(system.pid).children() if one.status() != psutil.STATUS_ZOMBIE]
    (child,) = [one for one in alive if word in " ".join(one.cmdline())]
    os.kill(child.pid, signal.SIGKILL)


@asynccontextmanager
async def door(environment: dict[str, str], token: str) -> AsyncIterator[tuple[Process, A2AClient]]:
    """A door in another process, and a client."""
    async with started(environment, "A2A: ", "serve", "a2a", TEAM) as (running, line):
        url = line.split()[-1].removesuffix("/.well-known/agent-card.json")
        headers = {"Authorization": f"Bearer {token}", **SPOKEN}
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:
            yield running, A2AClient(http)


async def patiently(client: A2AClient, method: str, **params: Any) -> Any:
    """Repeat a request until it is answered, as a client does that gets 503."""
    found: list[Any] = []

    async def is_answered() -> bool:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await client.http.post("/a2a/jsonrpc", json=body)
        if answer.status_code == 503:
            return False
        said = answer.json()
        if "result" not in said and said["error"]["code"] == -32603:
            return False
        found[:] = [said]
        return True

    await until(is_answered)
    return found[0]


async def test_every_task_ends_once_whatever_dies(amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> None:
    environment = {
        "APC_AMQP_URL": amqp_vhost_url,
        "APC_DATABASE_URL": postgres_url,
        "APC_DATA_DIR": str(tmp_path),
        "APC_A2A_LISTEN": "127.0.0.1:0",
    }
    async with started(environment, "ready after", "up", "--agent", TEAM) as (system, _):
        adding = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "apc_cli", "caller", "add", "ida", env=os.environ | environment, stdout=PIPE
        )
        token = (await adding.communicate())[0].decode().strip()
        assert token.startswith("apc_a2a_")
        async with door(environment, token) as (first, one), door(environment, token) as (_, two):
            messages = [made({"data": {"text": f"boat {n}", "amount": 700}}, message_id=f"m-{n}") for n in range(TASKS)]
            sending = [
                asyncio.create_task(
                    patiently(one, "SendMessage", message=message, configuration={"returnImmediately": True})
                )
                for message in messages
            ]
            kill_child(system, "orchestrator")  # some are begun, some are not judged yet
            tasks = [said["result"]["task"]["id"] for said in await asyncio.gather(*sending)]
            first.kill()
            kill_child(system, "clerk")
            again = [
                await patiently(two, "SendMessage", message=message, configuration={"returnImmediately": True})
                for message in messages
            ]
            assert [said["result"]["task"]["id"] for said in again] == tasks, "the same message is the same task"
            for task_id in tasks:
                await two.comes_to(task_id, "INPUT_REQUIRED")
            kill_child(system, "persister")
            answers = [
                asyncio.create_task(
                    patiently(
                        two, "SendMessage", message=made({"text": "yes"}, message_id=f"a-{task_id}", taskId=task_id)
                    )
                )
                for task_id in tasks
            ]
            kill_child(system, "orchestrator")
            await asyncio.gather(*answers)
            ended = [await two.comes_to(task_id, "COMPLETED") for task_id in tasks]
            assert [one["artifacts"][0]["parts"][0]["text"] for one in ended] == [
                f"paid for boat {n}" for n in range(TASKS)
            ]
            listed = await two.call("ListTasks")
            assert listed["totalSize"] == TASKS and {state_of(one) for one in listed["tasks"]} == {"COMPLETED"}

"""A team over RabbitMQ, each agent a process: one is killed at work, and terminals start and follow the sessions."""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.traffic import until

TEAM = "slow_team:team"
CODE = Path(__file__).parent / "agents/slow_team.py"


class Terminal:
    """Commands in the folder of a deployment."""

    def __init__(self, folder: Path, given: dict[str, str]) -> None:
        self._apc = ApcCommand(folder)
        self._given = given

    async def __call__(self, *arguments: str, stdin: str = "") -> Any:
        """Run a command to its end."""
        return await asyncio.to_thread(self._apc, *arguments, stdin=stdin, given=self._given)

    async def start(self, text: str, *options: str) -> Any:
        """Start a session of the team."""
        return await self("session", "start", TEAM, "--input", "-", *options, stdin=json.dumps({"text": text}))

    @asynccontextmanager
    async def system(self) -> AsyncIterator[psutil.Process]:
        """Run everything; yields the supervisor."""
        process = self._apc.start("up", "--agent", TEAM, given=self._given)
        assert process.stderr is not None
        said: list[str] = []
        while not any("ready after" in line for line in said):
            said.append(line := await asyncio.to_thread(process.stderr.readline))
            assert line, "".join(said)
        draining = asyncio.create_task(asyncio.to_thread(process.stderr.read))
        try:
            yield psutil.Process(process.pid)
        finally:
            process.terminate()
            await draining
            await asyncio.to_thread(process.wait)


def worker_of(supervisor: psutil.Process, agent: str) -> psutil.Process:
    (found,) = [child for child in supervisor.children() if child.cmdline()[-1] == f"{TEAM}:{agent}"]
    return found


@pytest.mark.timeout(300)
async def test_one_of_the_processes_is_killed_at_work(amqp_vhost_url: str, postgres_url: str, tmp_path: Path) -> None:
    given = {"APC_AMQP_URL": amqp_vhost_url, "APC_DATABASE_URL": postgres_url}
    shutil.copy(CODE, tmp_path)
    apc = Terminal(tmp_path, given)
    async with apc.system() as supervisor:
        nobody = await apc.start("one two three")
        assert nobody.returncode == 2 and "apc agent add operator --role operator" in nobody.stderr
        added = await apc("agent", "add", "starter", "--role", "operator", "--swarm", "people", "--rights", "operate")
        assert added.returncode == 0, added.stderr
        started = await apc.start("one two three", "--key", "page-1")
        assert started.returncode == 0, started.stderr
        session = started.stdout.strip()
        await until(lambda: asyncio.sleep(0, (tmp_path / "begun").exists()))
        waiting = await apc("session", "wait", session, "--timeout", "0.1")
        assert (waiting.returncode, waiting.stdout) == (5, ""), waiting.stderr
        explained = await apc("session", "explain", session)
        assert "WORKING" in explained.stdout, explained.stderr

        worker_of(supervisor, "reader").kill()

        ended = await apc("session", "result", session, "--timeout", "90")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == {
            "session": session,
            "result": {"schema": "summary/1", "content": {"words": 3}},
        }
        assert (await apc("session", "wait", session)).stdout == "CLOSED\n"
        events = [json.loads(line) for line in (await apc("session", "events", session)).stdout.splitlines()]
        typed = [(one["sender"], one["schema"], one["content"]) for one in events if one["schema"]]
        assert typed == [
            ("starter", "page/1", {"text": "one two three"}),
            ("lead", "page/1", {"text": "one two three"}),
            ("reader", "summary/1", {"words": 3}),
            ("lead", "summary/1", {"words": 3}),
        ]
        assert (await apc.start("one two three", "--key", "page-1")).stdout.strip() == session
        conflict = await apc.start("other", "--key", "page-1")
        assert conflict.returncode == 2 and "'page-1' was used for another input" in conflict.stderr

        failed = (await apc.start("")).stdout.strip()
        halted = await apc("session", "wait", failed, "--timeout", "90")
        assert halted.returncode == 3 and "HANDLER_FAILED" in halted.stderr
        unknown = await apc("session", "events", "nobody-knows-it")
        assert unknown.returncode == 2 and "the log holds no session 'nobody-knows-it'" in unknown.stderr
        assert (await apc("session", "start", TEAM, "--input", "-", stdin='{"words": 1}')).stderr == (
            "apc: the input is no Page: text: Field required\n"
        )

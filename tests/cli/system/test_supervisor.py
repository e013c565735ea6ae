"""The supervisor: restarts what dies, drains by stage."""

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog.testing

from apc_cli.system.supervisor import ProcessSpec, Supervisor
from apc_client.sending import until

Logs = list[MutableMapping[str, Any]]
PATIENCE = timedelta(seconds=30)
WAITING = ("serve", "persister")
"""Waits forever: its broker and database are away."""
AWAY = {"APC_AMQP_URL": "amqp://127.0.0.1:9/", "APC_DATABASE_URL": "postgresql://127.0.0.1:9/apc"}

SUPERVISING = """
import asyncio, sys
from pathlib import Path
from apc_cli.system.supervisor import ProcessSpec, Supervisor

async def main():
    async with Supervisor([ProcessSpec("one", ("serve", "persister"))], Path(sys.argv[1])):
        await asyncio.Event().wait()

asyncio.run(main())
"""


def named(logs: Logs, event: str) -> Logs:
    """Return the events of a name."""
    return [entry for entry in logs if entry["event"] == event]


async def test_a_process_that_dies_is_started_again(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:

        async def started_twice() -> bool:
            return len(named(logs, "process_started")) == 2

        async with Supervisor([ProcessSpec("one", WAITING, environment=AWAY)], tmp_path):
            await until(lambda: _is_there(logs), PATIENCE)
            os.kill(int(str(named(logs, "process_started")[0]["pid"])), signal.SIGKILL)
            await until(started_twice, PATIENCE)

    (death,) = named(logs, "process_died")
    assert death["code"] == -signal.SIGKILL
    assert len(named(logs, "process_stopped")) == 1


def _all_say(files: list[Path]) -> bool:
    return all(file.exists() and "service_waits" in file.read_text() for file in files)


async def _is_there(logs: Logs) -> bool:
    return bool(named(logs, "process_started"))


async def test_a_process_that_always_fails_is_started_with_growing_pauses(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:

        async def died_thrice() -> bool:
            return len(named(logs, "process_died")) == 3

        async with Supervisor([ProcessSpec("bad", ("no-such-command",))], tmp_path):
            await until(died_thrice, PATIENCE)

    pauses = [float(str(entry["restart_in_s"])) for entry in named(logs, "process_died")]
    assert pauses[:3] == sorted(pauses[:3])
    assert pauses[0] < pauses[2]


@pytest.mark.long
async def test_stages_drain_from_the_highest(tmp_path: Path) -> None:
    specs = [
        ProcessSpec("writer", WAITING, stage=0, environment=AWAY),
        ProcessSpec("agent-1", WAITING, stage=2, environment=AWAY),
        ProcessSpec("gate", WAITING, stage=1, environment=AWAY),
        ProcessSpec("agent-2", WAITING, stage=2, environment=AWAY),
    ]
    with structlog.testing.capture_logs() as logs:

        async def all_wait() -> bool:
            return await asyncio.to_thread(_all_say, [tmp_path / f"{spec.name}.log" for spec in specs])

        async with Supervisor(specs, tmp_path):
            await until(all_wait, PATIENCE)

    stopped = [entry["process"] for entry in named(logs, "process_stopped")]
    assert set(stopped[:2]) == {"agent-1", "agent-2"}
    assert stopped[2:] == ["gate", "writer"]
    assert all(entry["code"] == 0 for entry in named(logs, "process_stopped"))


async def test_each_process_has_its_own_port_for_its_pages(tmp_path: Path) -> None:
    """`apc config` says which one its process was given."""
    specs = [ProcessSpec(name, ("config", "--json")) for name in ("one", "two")]

    async def both_have_said_it() -> bool:
        return all(_port(tmp_path / f"{name}.log") for name in ("one", "two"))

    async with Supervisor(specs, tmp_path, first_port=9400):
        await until(both_have_said_it, PATIENCE)
    assert [_port(tmp_path / f"{name}.log") for name in ("one", "two")] == ["9400", "9401"]


def _port(log: Path) -> str | None:
    text = log.read_text() if log.exists() else ""
    found = re.search(r'"APC_HEALTH_PORT",\s*"value": "?(\d+)', text)
    return found and found[1]


@pytest.mark.long
async def test_nothing_outlives_a_killed_supervisor(tmp_path: Path) -> None:
    program = (sys.executable, "-c", SUPERVISING, str(tmp_path))
    supervising = await asyncio.create_subprocess_exec(*program, env=os.environ | AWAY, stdout=subprocess.DEVNULL)

    async def waits() -> bool:
        return _all_say([tmp_path / "one.log"])

    async def is_gone() -> bool:
        return not kept.is_running() or kept.status() == psutil.STATUS_ZOMBIE

    try:
        await until(waits, PATIENCE)
        (kept,) = psutil.Process(supervising.pid).children()
    finally:
        supervising.kill()
        await supervising.wait()
    await until(is_gone, PATIENCE)


async def test_a_process_that_cannot_be_started_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = asyncio.create_subprocess_exec, 2

    async def exhausted(*given: Any, **named: Any) -> asyncio.subprocess.Process:
        nonlocal failures
        if failures:
            failures -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return await start(*given, **named)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", exhausted)
    with structlog.testing.capture_logs() as logs:
        async with Supervisor([ProcessSpec("one", WAITING, environment=AWAY)], tmp_path) as supervisor:
            await until(lambda: _is_there(logs), PATIENCE)
            assert not any(keeper.done() for keeper in supervisor.keepers)
    assert len(named(logs, "process_not_started")) == 2

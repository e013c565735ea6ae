"""How a service ends: 0 when it was told to stop, and else one clear line and another code."""

import asyncio
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import structlog.testing
from tests.support.apc_command import ApcCommand
from tests.support.servers.ports import free_ports

from apc_bus.errors import CallAborted, TaskEnded
from apc_bus.settings import BusSettings
from apc_cli.commands import main
from apc_cli.system.running import stop_on_signals
from apc_client.in_process import EmbeddedSystem

Serve = Callable[[], Awaitable[None]]


async def _told_to_stop() -> None:
    stop = stop_on_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    await stop.wait()


async def _cancelled_by_its_library() -> None:
    raise asyncio.CancelledError


async def _cancelled_in_a_task() -> None:
    await asyncio.create_task(_cancelled_by_its_library())


async def _exits() -> None:
    sys.exit(0)


async def _exits_in_a_task() -> None:
    await asyncio.gather(asyncio.create_task(_exits()), asyncio.Event().wait())


async def _ended_by_its_task() -> None:
    raise TaskEnded("the gate of shard 0 has ended without having been told to stop")


async def _stops_its_loop() -> None:
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("serve", "code", "words"),
    [
        (_told_to_stop, 0, ""),
        (
            _cancelled_by_its_library,
            2,
            "apc: the connection was lost: a call was cancelled that nobody had told to end\n",
        ),
        (_cancelled_in_a_task, 2, "apc: the connection was lost: a call was cancelled that nobody had told to end\n"),
        (_exits, 2, "apc: the orchestrator has ended without having been told to stop: exit(0)\n"),
        (_exits_in_a_task, 2, "apc: the orchestrator has ended without having been told to stop: exit(0)\n"),
        (
            _stops_its_loop,
            2,
            "apc: the orchestrator has ended without having been told to stop: Event loop stopped before Future "
            "completed.\n",
        ),
        (_ended_by_its_task, 2, "apc: the gate of shard 0 has ended without having been told to stop\n"),
    ],
)
def test_a_service_that_ends_ends_with(
    serve: Serve, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("apc_cli.commands.serve.run_orchestrator", serve)
    with pytest.raises(SystemExit) as ended:
        main(["serve", "orchestrator"])
    assert (ended.value.code, capsys.readouterr().err) == (code, words)


def test_a_fault_of_our_own_is_one_line_of_the_log_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails() -> None:
        raise ZeroDivisionError("no rows\nand more")

    monkeypatch.setattr("apc_cli.commands.serve.run_orchestrator", fails)
    with structlog.testing.capture_logs() as logs, pytest.raises(ZeroDivisionError):
        main(["serve", "orchestrator"])
    (line,) = [entry for entry in logs if entry["event"] == "service_failed"]
    assert line["service"] == "orchestrator" and line["error"] == "ZeroDivisionError" and "\n" not in line["reason"]


@pytest.mark.parametrize("end", ["cancelled", "returned", "told"])
async def test_a_system_in_this_process_one_of_whose_services_ends(end: str, tmp_path: Path) -> None:
    async def serve() -> None:
        if end == "cancelled":
            raise asyncio.CancelledError

    system = EmbeddedSystem("", BusSettings(data_dir=tmp_path), None, None)  # type: ignore[arg-type]
    stop, own = asyncio.Event(), asyncio.Event()
    if end == "told":
        own.set()
    system.start_service("persister", serve(), own)
    if end == "told":
        await system.run(stop)
        return
    with pytest.raises(CallAborted if end == "cancelled" else TaskEnded):
        await system.run(stop)


DESK = """
import asyncio
import sys
from pydantic import BaseModel
from apc_agents import Agent, HandlerContext, Team, message

@message("letter/1")
class Letter(BaseModel):
    code: str

async def leave() -> None:
    sys.exit(0)

clerk = Agent("clerk", role="clerk", swarm="desk")

@clerk.on(Letter)
async def reply(letter: Letter, ctx: HandlerContext) -> None:
    if letter.code == "exit":
        await asyncio.gather(leave(), asyncio.Event().wait())
    asyncio.get_running_loop().stop()
    await asyncio.Event().wait()

team = Team("desk", agents=[clerk], entry="clerk")
"""


@pytest.mark.long
@pytest.mark.parametrize(("code", "how"), [("exit", r"exit\(0\)"), ("stop", "Event loop stopped before .*")])
def test_a_run_whose_loop_a_handler_ends_names_agent_and_packet(
    postgres_url: str, tmp_path: Path, code: str, how: str
) -> None:
    (tmp_path / "desk.py").write_text(DESK)
    (tmp_path / "input.json").write_text(f'{{"code": "{code}"}}')
    given = {"APC_DATABASE_URL": postgres_url, "APC_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": str(tmp_path)}
    ended = ApcCommand(tmp_path)("run", "desk:team", "--input", "input.json", given=given)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert re.search(
        rf"^apc: the run has ended .* while clerk handled packet [0-9a-f-]{{36}}: {how}$", ended.stderr, re.M
    )


async def _fail() -> None:
    raise ZeroDivisionError("nobody has foreseen this")


async def test_a_service_that_fails_ends_what_waits_for_it(tmp_path: Path) -> None:
    """Whether it was started before or within the block; a cancellation from outside stays one."""
    system = EmbeddedSystem("", BusSettings(data_dir=tmp_path), None, None)  # type: ignore[arg-type]
    reached = asyncio.Event()

    async def block() -> None:
        async with system.watched():
            reached.set()
            await asyncio.Event().wait()

    told = asyncio.create_task(block())
    await reached.wait()
    told.cancel()
    with pytest.raises(asyncio.CancelledError):
        await told
    with pytest.raises(ZeroDivisionError):
        async with asyncio.timeout(10), system.watched():
            system.start_service("clerk", _fail(), asyncio.Event())
            await asyncio.Event().wait()
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(block(), 10)


@pytest.mark.postgres
def test_servers_of_http_that_are_told_to_stop_clear_up_and_end_with_0(file_database: str, tmp_path: Path) -> None:
    """uvicorn would raise the signal again, and the process would die of it with its link to the page on the disk."""
    apc, given = ApcCommand(tmp_path), {"APC_DATABASE_URL": file_database, "APC_DATA_DIR": str(tmp_path)}
    ways = [("web", signal.SIGTERM), ("tiles", signal.SIGINT)]
    ports = free_ports(len(ways))
    servers = [
        apc.start("serve", name, "--listen", f"127.0.0.1:{port}", given=given)
        for (name, _), port in zip(ways, ports, strict=True)
    ]
    try:
        for port in ports:
            _await_answer(port)
        assert len(list(tmp_path.glob("ui-*.html"))) == 1
        for (_, number), server in zip(ways, servers, strict=True):
            server.send_signal(number)
        said = [server.communicate(timeout=30) for server in servers]
        assert [server.returncode for server in servers] == [0, 0], said
        assert not list(tmp_path.glob("ui-*.html")), "the link with the token is gone"
    finally:
        for server in servers:
            server.kill()


def _await_answer(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                assert client.recv(8) == b"HTTP/1.1"
                return
        except OSError:
            assert time.monotonic() < deadline, "no server answers"
            time.sleep(0.05)

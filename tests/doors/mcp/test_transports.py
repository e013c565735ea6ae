"""The command `apc serve mcp` over standard input and output, and the server over HTTP with accounts."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tests.doors.mcp.conftest import Assistant, Person
from tests.doors.mcp.serving import served
from tests.support.traffic import RUN, SESSION
from tests.support.traffic.packets import make_start
from tests.web.conftest import WebBench
from tests.web.inbox.conftest import Desk

from apc_client.local_acts import OPERATOR_USER
from apc_client.operator import operator_person
from apc_client.registration import LOG_PATIENCE, addition, publish_changes, wait_until_recorded

DISCOVER: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}


@pytest.fixture
def settings(postgres_url: str, tmp_path: Path) -> dict[str, str]:
    return {"APC_DATABASE_URL": postgres_url, "APC_DATA_DIR": str(tmp_path / "data")}


@pytest.mark.long
async def test_an_editor_reads_the_log_over_stdio(told: WebBench, settings: dict[str, str]) -> None:
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "apc_cli", "serve", "mcp", "--role", "reader"], env=settings
    )
    for mode in ("auto", "legacy"):
        async with Client(stdio_client(command), mode=mode) as client:
            editor = Assistant(client)
            assert (await editor.call("runs"))["items"][0]["run_id"] == RUN
            assert (await editor.call("explain", session_id=SESSION))["session_id"] == SESSION
            assert (await editor.refusal("doctor")).startswith("NO_ROLE: ")
            assert not any(tool.name.startswith("signal") for tool in (await client.list_tools()).tools)


@pytest.fixture
def process(told: WebBench, settings: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    line = [sys.executable, "-m", "apc_cli", "serve", "mcp"]
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        line, env={"PATH": "/usr/bin:/bin", **settings}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    )
    yield started
    started.kill()
    started.wait()
    for stream in (started.stdin, started.stdout, started.stderr):
        with suppress(BrokenPipeError):
            stream.close()


def say(process: subprocess.Popen[str], line: str) -> None:
    """Write a line to the server."""
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str], number: int) -> Any:
    """Return the answer to a request, and read over what comes before it."""
    assert process.stdout is not None
    for line in process.stdout:
        answer = json.loads(line)  # nothing else is ever written there
        if answer.get("id") == number:
            return answer
    raise AssertionError("the server has ended")


@pytest.mark.long
async def test_the_server_ends_with_its_client_and_on_sigterm(process: subprocess.Popen[str]) -> None:
    say(process, json.dumps(DISCOVER))
    assert heard(process, 1)["result"]["serverInfo"]["name"] == "apc-bus"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0


@pytest.mark.long
async def test_the_end_of_input_ends_the_server(process: subprocess.Popen[str]) -> None:
    say(process, json.dumps(DISCOVER))
    heard(process, 1)
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=30) == 0


async def test_accounts_have_their_roles_over_http(told: WebBench, tmp_path: Path) -> None:
    async with served(told.services, tmp_path / "users.json") as server:
        for mode in ("auto", "legacy"):
            async with server.client("rosa", mode=mode) as client:
                rosa = Assistant(client)
                assert (await rosa.call("replay_verify", run_id=RUN))["is_verified"]
                assert (await rosa.refusal("doctor")).startswith("NO_ROLE: this needs the role operator")
            async with server.client("vera", mode=mode) as client:
                assert (await Assistant(client).refusal("search", text="idea")).startswith("NO_ROLE: ")
                assert (await Assistant(client).call("session", session_id=SESSION))["session_id"] == SESSION


async def test_an_act_is_that_of_the_account(desk: Desk, person: Person, tmp_path: Path) -> None:
    await desk.house.open(make_start())
    olga = addition(operator_person("olga", OPERATOR_USER))
    await publish_changes(desk.house.client(OPERATOR_USER), [olga], 1)
    await wait_until_recorded(desk.house.pool, [olga], 1, LOG_PATIENCE)
    services = desk.bench.services
    async with served(services, tmp_path / "users.json", services.acts) as server:
        for mode, act in (("auto", "pause"), ("legacy", "resume")):
            async with server.client("olga", mode=mode, elicitation_callback=person.answer) as client:
                done = await Assistant(client).call("signal_session", session_id=SESSION, act=act)
                assert done["detail"]["by"] == "olga"
    assert len(person.shown) == 2

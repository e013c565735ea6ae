"""The page of the A2A door: its curl commands, as a reader runs them, against `apc up --a2a` of the example."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/how-to/a2a.md"
WHERE = "http://127.0.0.1:8084"

pytestmark = [pytest.mark.long, pytest.mark.postgres, pytest.mark.timeout(200)]


@pytest.fixture
async def door(tmp_path: Path, postgres_url: str, unused_tcp_port: int) -> AsyncIterator[tuple[Path, str]]:
    """The folder of the example, where the door is started as the page says, and where it answers."""
    folder = Path(shutil.copytree(ROOT / "examples/support-desk", tmp_path / "desk"))
    given = {"APC_DATABASE_URL": postgres_url, "APC_A2A_LISTEN": f"127.0.0.1:{unused_tcp_port}"}
    with ApcCommand(folder).start("up", "--a2a", "desk:team", given=given, shell='exec "$@" 2> up.log') as started:
        url = f"http://127.0.0.1:{unused_tcp_port}"

        def answers() -> bool:
            assert started.poll() is None, (folder / "up.log").read_text()
            try:
                return httpx.get(f"{url}/healthz").status_code == 200
            except httpx.TransportError:
                return False

        try:
            await until(answers)
            yield folder, url
        finally:
            started.terminate()


def commands() -> tuple[str, str, str]:
    """Return the page's commands of the second terminal: the card, a task, and the short form."""
    blocks = re.findall(r"```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (first,) = [one for one in blocks if "agent-card.json" in one]
    (short,) = [one for one in blocks if one.startswith("a2a() {")]
    card, task = first.split("\n\n")
    return card, task, short


async def test_the_curl_commands_of_the_page_work(door: tuple[Path, str]) -> None:
    folder, url = door

    def run(script: str) -> str:
        bash = ["bash", "-c", script.replace(WHERE, url)]
        return subprocess.run(bash, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout

    card, task, short = commands()
    assert json.loads(run(card))["skills"][0]["name"] == "support"
    begun = json.loads(run(task))["task"]
    assert begun["status"]["state"] == "TASK_STATE_COMPLETED" and begun["artifacts"], begun
    define, *lines = short.replace("ID", begun["id"]).split("\n\n")
    again, listed, *_ = lines[0].splitlines()
    assert json.loads(run(f"{define}\n{again}"))["id"] == begun["id"]
    assert [one["id"] for one in json.loads(run(f"{define}\n{listed}"))["tasks"]] == [begun["id"]]
    (streamed,) = [line for line in lines[0].splitlines() if "message:stream" in line]
    heard = run(f"{define}\n{streamed}").splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in heard if line.startswith("data: ")]
    assert "task" in told[0] and told[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
    (cancelled,) = [line for line in lines[0].splitlines() if ":cancel" in line]
    assert json.loads(run(f"{define}\n{cancelled}"))["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"

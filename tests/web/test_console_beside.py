"""`--ui`: the web console beside a command, in a process that ends with it."""

import json
import re
import shutil
import signal
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx2 as httpx
import psutil
import pytest
from tests.acceptance.conftest import apc
from tests.acceptance.test_teams import EXAMPLE, FOREIGN, TEAM
from tests.acceptance.test_up import end, up, wait_for
from tests.support.apc_command import ApcCommand

__all__ = ["apc"]
pytestmark = pytest.mark.page


def runs_at(line: str) -> list[str]:
    """Return the runs that the web console of this line shows, read with the token of its file."""
    file = Path(unquote(urlsplit(line.split("open ")[1].split()[0]).path))
    found = re.search(r'href="([^"]+)"', file.read_text(encoding="utf-8"))
    assert found is not None
    address = urlsplit(unescape(found[1]))
    headers = {"Authorization": f"Bearer {address.fragment.removeprefix('token=')}"}
    answer = httpx.get(f"{address.scheme}://{address.netloc}/api/v1/runs", headers=headers)
    assert answer.status_code == 200, answer.text
    return [run["run_id"] for run in answer.json()["items"]]


def test_a_finished_run_stays_visible_until_ctrl_c(apc: ApcCommand) -> None:
    shutil.copy(EXAMPLE / "review.py", apc.folder / "review.py")
    (apc.folder / "pr.json").write_text(FOREIGN)
    running = apc.start("run", TEAM, "--input", "pr.json", "--ui")
    try:
        line = wait_for(running, "it has the token")
        assert running.stdout is not None
        assert len(runs_at(line)) == 1, "the database of the run serves the console, too"
        children = psutil.Process(running.pid).children()
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0
    assert json.loads(said)["result"]["schema"] == "review/1", "the result came before Ctrl-C, and alone on its stream"
    assert not any(child.is_running() for child in children)


def test_up_serves_it_and_takes_it_along(apc: ApcCommand) -> None:
    with up(apc, "--ui") as running:
        line = wait_for(running, "it has the token")
        assert runs_at(line) == []
        children = psutil.Process(running.pid).children()
        end(running)
    assert not any(child.is_running() for child in children)


def test_a_command_that_is_killed_takes_it_along(apc: ApcCommand) -> None:
    with up(apc, "--ui") as running:
        wait_for(running, "it has the token")
        [console] = [one for one in psutil.Process(running.pid).children() if "ui" in one.cmdline()]
        running.kill()
        console.wait(timeout=30)

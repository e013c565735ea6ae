"""`--ui`: the web console beside a command, in a process that ends with it."""

import json
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from html import unescape
from pathlib import Path
from typing import Any
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


def place_of(line: str) -> tuple[Path, str, str]:
    """Return the file that a line names, and the address and the token in it."""
    file = Path(unquote(urlsplit(line.split("open ")[1].split()[0]).path))
    found = re.search(r'href="([^"]+)"', file.read_text(encoding="utf-8"))
    assert found is not None
    address = urlsplit(unescape(found[1]))
    return file, f"{address.scheme}://{address.netloc}/api/v1", address.fragment.removeprefix("token=")


def asked(line: str, path: str) -> Any:
    """Return what the web console of this line answers who has the token of its file."""
    _, url, token = place_of(line)
    answer = httpx.get(f"{url}{path}", headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return answer.json()


def runs_at(line: str) -> list[str]:
    """Return the runs that the web console of this line shows."""
    return [run["run_id"] for run in asked(line, "/runs")["items"]]


def listed_at(line: str) -> list[str]:
    """Return the runs of a console once there are some: the list is filled once a second."""
    while not (found := runs_at(line)):
        pass
    return found


def lines_with(running: subprocess.Popen[str], *texts: str) -> list[str]:
    """Return the first line on stderr that holds each of these texts, which come in any order."""
    assert running.stderr is not None
    found: dict[str, str] = {}
    for line in running.stderr:
        found |= {text: line for text in texts if text in line and text not in found}
        if len(found) == len(texts):
            break
    return [found[text] for text in texts]


def printed(running: subprocess.Popen[str]) -> Any:
    """Return the JSON on stdout, as soon as all of it is there."""
    assert running.stdout is not None
    said = ""
    for line in running.stdout:
        said += line
        with suppress(json.JSONDecodeError):
            return json.loads(said)
    raise AssertionError(said)


def copy_example(apc: ApcCommand) -> None:
    """Put the team and its rules into the working folder."""
    for name in ("review.py", "review.yml"):
        shutil.copy(EXAMPLE / name, apc.folder / name)


def test_a_finished_run_stays_visible_until_ctrl_c(apc: ApcCommand) -> None:
    copy_example(apc)
    (apc.folder / "pr.json").write_text(FOREIGN)
    running = apc.start("run", TEAM, "--input", "pr.json", "--ui")
    try:
        line = wait_for(running, "it has the token")
        result = printed(running)
        assert len(listed_at(line)) == 1, "the database of the run serves the console, too"
        children = psutil.Process(running.pid).children()
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 0
    assert result["result"]["schema"] == "review/1" and said == "", "the result came before Ctrl-C, alone on its stream"
    assert not any(child.is_running() for child in children)


def test_a_run_that_halts_stays_visible_until_ctrl_c(apc: ApcCommand) -> None:
    broken = (
        (EXAMPLE / "review.py")
        .read_text()
        .replace("    found = ctx", "    raise RuntimeError('not now')\n    found = ctx", 1)
    )
    assert "not now" in broken
    copy_example(apc)
    (apc.folder / "review.py").write_text(broken)
    (apc.folder / "pr.json").write_text(FOREIGN)
    running = apc.start("run", TEAM, "--input", "pr.json", "--ui")
    try:
        line, _ = lines_with(running, "it has the token", "HANDLER_FAILED lead")
        assert len(listed_at(line)) == 1
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 3


@pytest.mark.parametrize("command", [("up", "--ui"), ("run", TEAM, "--input", "pr.json", "--ui")])
def test_accounts_without_tls_are_refused_before_anything_starts(apc: ApcCommand, command: tuple[str, ...]) -> None:
    copy_example(apc)
    (apc.folder / "pr.json").write_text(FOREIGN)
    done = apc(*command, given={"APC_WEB_USERS_FILE": "users.json"})
    assert done.returncode == 2
    assert done.stderr.startswith("apc: passwords need TLS: set APC_WEB_TLS_CERT and APC_WEB_TLS_KEY")
    assert not (apc.folder / ".apc/postgres").exists()


def test_up_serves_it_and_takes_it_along(apc: ApcCommand) -> None:
    with up(apc, "--ui") as running:
        line = wait_for(running, "it has the token")
        assert runs_at(line) == []
        assert asked(line, "/about")["can_act"], "through the socket of the data folder"
        assert {one["state"] for one in asked(line, "/system")["services"]} == {"running"}
        children = psutil.Process(running.pid).children()
        end(running)
    assert not any(child.is_running() for child in children)


def test_only_who_can_read_its_file_reaches_it(apc: ApcCommand) -> None:
    """The token is in no process list and in no line that is printed."""
    with up(apc, "--ui") as running:
        line = wait_for(running, "it has the token")
        file, url, token = place_of(line)
        assert file.stat().st_mode & 0o777 == 0o600 and file.parent.stat().st_mode & 0o077 == 0
        own = psutil.Process(running.pid)
        assert not [one for one in (own, *own.children(recursive=True)) if token in " ".join(one.cmdline())]
        assert httpx.get(f"{url}/runs").status_code == 401
        known = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/runs", headers=known).status_code == 200
        for foreign in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}):
            assert httpx.get(f"{url}/runs", headers=known | foreign).status_code in (403, 421), foreign
        assert httpx.get(f"{url}/runs?token={token}").status_code == 401, "an address with it opens nothing"
        assert token not in line + end(running)


def test_a_command_that_is_killed_takes_it_along(apc: ApcCommand) -> None:
    with up(apc, "--ui") as running:
        wait_for(running, "it has the token")
        [console] = [one for one in psutil.Process(running.pid).children() if "ui" in one.cmdline()]
        running.kill()
        console.wait(timeout=30)

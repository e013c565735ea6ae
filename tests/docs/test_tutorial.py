"""The tutorials run as they are written."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs/research/first-agent.md"
TEAM_TUTORIAL = ROOT / "docs/tutorial/team.md"


def test_the_agent_and_its_test_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["skeptic.py", "test_skeptic.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_skeptic.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.long
@pytest.mark.timeout(500)
def test_the_team_with_an_approval_from_its_test_to_its_replay(tmp_path: Path) -> None:
    """Every block is run in its order, but for the installation, which must name what there is."""
    blocks = re.findall(r"```(\w+)\n(.*?)```", TEAM_TUTORIAL.read_text(encoding="utf-8"), re.DOTALL)
    kinds = [kind for kind, _ in blocks]
    assert kinds == ["bash", "python", "python", "bash", "bash", "text", "json", "bash"]
    install, team, test, tests, run, asked, result, read = [text for _, text in blocks]

    extras = set(re.findall(r"apc-bus\[([\w,]+)\]", install)[0].split(","))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras <= set(known) and "pytest" in install

    for code in (team, test):
        name = code.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", *tests.split(), "-p", "no:cacheprovider"]
    tested = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr

    shown, ran = run.splitlines()
    text, _, name = shown.removeprefix("echo '").partition("' > ")
    (tmp_path / name).write_text(text)
    apc = ApcCommand(tmp_path)
    done = apc(*ran.split()[1:], stdin="y go ahead\n")
    assert done.returncode == 0, done.stderr
    assert asked in done.stderr
    session = json.loads(done.stdout)["session"]
    assert json.loads(done.stdout) == json.loads(result.replace("SESSION", session))

    silent = apc(*ran.split()[1:], stdin="y\n")
    assert json.loads(silent.stdout)["result"]["content"]["said"] == "alice: approved", "without a note"
    said = [apc(*line.replace("SESSION", session).split()[1:]) for line in read.splitlines()]
    assert [one.returncode for one in said] == [0, 0, 0, 0], [one.stderr for one in said]
    listed, explained, events, replayed = [one.stdout for one in said]
    assert session in listed and "CLOSED" in explained
    told = [json.loads(line) for line in events.splitlines()]
    (to_alice,) = [one["content"] for one in told if one["recipients"] == ["alice"]]
    (by_alice,) = [one["content"] for one in told if one["sender"] == "alice"]
    assert to_alice == {"question": "Ship 'new parser'? Its risk is 0.4."}
    assert by_alice == {"outcome": "approved", "note": "go ahead"}
    assert json.loads(replayed)["is_verified"] is True

"""A project of `apc new`, deployed by its README. It ends before the stack of the other files takes its ports."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import NEW_PROJECT, Stack

DRAFT = {"text": "a  first   draft"}
RESULT = {"text": "A first draft", "edited": True}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, figures: dict[str, Any]) -> Iterator[Stack]:
    """What `apc new my-team` and `make deploy` make in an empty folder; the image apc-bus must be built."""
    empty = tmp_path_factory.mktemp("empty")
    subprocess.run([sys.executable, "-m", "apc_cli", "new", "my-team"], cwd=empty, check=True)
    made = Stack(empty / "my-team", figures, NEW_PROJECT)
    try:
        began = time.monotonic()
        _make(made.folder, "deploy")
        figures["seconds of `make deploy` in a new project: secrets, image, until all is healthy"] = round(
            time.monotonic() - began, 1
        )
        yield made
    finally:
        made.down()


def _make(folder: Path, target: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("APC_", "PYTEST", "MAKE"))}
    environment = inherited | {"COMPOSE_PROJECT_NAME": NEW_PROJECT}
    command = ["make", target, f"PY={sys.executable}"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def session_of(project: Stack, draft: str) -> str:
    """Start a session as the README says; return its id."""
    return project.compose("run", "--rm", "-T", "start", stdin=draft).split()[-1]


def result_of(project: Stack, session: str) -> Any:
    """Read the result of a session."""
    said = project.compose("run", "--rm", "-T", "operator", "session", "result", session)
    return json.loads(said)["result"]["content"]


@pytest.mark.timeout(900)
def test_its_result_is_read_also_when_its_agents_are_killed(project: Stack) -> None:
    given = (project.folder / "input.json").read_text()
    assert result_of(project, session_of(project, given)) == {"text": "The bus keeps what was said", "edited": True}

    project.compose("kill", "editor")
    session = session_of(project, json.dumps(DRAFT))
    project.compose("kill", "writer")
    project.up("seconds until a new project is healthy after both agents were killed")
    assert result_of(project, session) == RESULT

    project.compose("exec", "-T", "persister", "apc", "log", "verify")


@pytest.mark.timeout(300)
def test_its_agents_are_the_two_services_of_its_override(project: Stack) -> None:
    running = project.compose("ps", "--services", "--status", "running").split()
    assert {"writer", "editor"} < set(running) and not {"lead", "security", "style"} & set(running)
    secrets = project.inside("writer", "import os; print(*sorted(os.listdir('/run/secrets')))").split()
    assert secrets == ["apc_amqp_url", "apc_database_url"]

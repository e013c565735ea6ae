"""Its own project, the example team, deployed by docs/how-to/server.md. `make test-compose` runs these tests."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/pull-request-review"
FIGURES = ROOT / "build/compose.json"
PROJECT, NEW_PROJECT = "apc-test", "apc-test-new"
collect_ignore_glob = [] if os.environ.get("APC_TEST_COMPOSE") else ["test_*.py"]


class Stack:
    """The containers of the project in a folder; each method is one line of the guide."""

    def __init__(self, folder: Path, figures: dict[str, Any], project: str = PROJECT) -> None:
        self.folder = folder
        self.figures = figures
        self.project = project

    def compose(self, *arguments: str, stdin: str = "", is_expected_to_work: bool = True) -> str:
        """Run `docker compose`; return its standard output. Fails the test with its words when it does not work."""
        command = ["docker", "compose", "--project-name", self.project, *arguments]
        done = subprocess.run(command, cwd=self.folder, input=stdin, capture_output=True, text=True, timeout=900)
        assert done.returncode == 0 or not is_expected_to_work, (
            f"{arguments}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
        return done.stdout

    def up(self, figure: str) -> None:
        """Start everything and wait until it is healthy; keep the seconds."""
        began = time.monotonic()
        self.compose("up", "--detach", "--wait")
        self.figures[figure] = round(time.monotonic() - began, 1)

    def down(self) -> None:
        """Remove everything, the volumes too."""
        self.compose("--profile", "client", "down", "--volumes", "--timeout", "10", is_expected_to_work=False)

    def ask(self, number: int) -> dict[str, Any]:
        """Start a session and return its result."""
        body = json.dumps({"number": number, "diff": '+ password = "x"'})
        result: dict[str, Any] = json.loads(self.compose("run", "--rm", "-T", "ask", stdin=body))
        return result

    def kill(self, *services: str) -> None:
        """SIGKILL; the engine starts nothing that was killed by hand, so `up` does."""
        self.compose("kill", *services)
        self.compose("up", "--detach", "--no-deps", *services)

    def python(self, code: str, *arguments: str, options: Sequence[str], service: str) -> str:
        """Run Python in a new container of a service, with other options than its own."""
        return self.compose(
            "run", "--rm", "-T", "--no-deps", *options, "--entrypoint", "python", service, "-", *arguments, stdin=code
        )

    def inside(self, service: str, code: str, *arguments: str) -> str:
        """Run Python in the running container of a service."""
        return self.compose("exec", "-T", service, "python", "-", *arguments, stdin=code)


@pytest.fixture(scope="session")
def figures() -> Iterator[dict[str, Any]]:
    """What is measured in this run; printed at its end, and kept."""
    made: dict[str, Any] = {}
    yield made
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(made, indent=2) + "\n")
    sys.stdout.write(FIGURES.read_text())


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, figures: dict[str, Any]) -> Iterator[Stack]:
    """The team in containers, from an empty folder; the image apc-bus must be built (`make images`)."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("Dockerfile", "docker-compose.override.yml", "review.py", "review.yml", "ask.py"):
        shutil.copy(EXAMPLE / name, folder)
    made = Stack(folder, figures)
    subprocess.run([sys.executable, "-m", "apc_cli", "deploy", "init"], cwd=folder, check=True)
    try:
        made.compose("build")
        made.up("seconds from nothing until everything is healthy, images there")
        yield made
    finally:
        made.down()

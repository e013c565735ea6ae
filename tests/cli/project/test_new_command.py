"""`apc new`: the project that it writes works at once, and it never writes over anything."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.apc_command import ApcCommand
from tests.support.servers.compose_model import read_compose

from apc_cli.commands.deploy import write_files
from apc_cli.commands.new import TeamKind, write_project
from apc_cli.errors import InputUnusable

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[3]


def make(folder: Path, *arguments: str, stdin: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("APC_", "PYTEST"))}
    command = ["make", *arguments, f"PY={sys.executable}"]
    return subprocess.run(
        command,
        cwd=folder,
        env=inherited | environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "answer"), [((), ""), (("--kind", "approval"), "y\n")])
def test_its_tests_pass_and_its_team_runs_at_once(
    kind: tuple[str, ...], answer: str, tmp_path: Path, postgres_url: str
) -> None:
    """The one slow test of `apc new`: it is what the command promises."""
    written = ApcCommand(tmp_path)("new", "my-team", *kind)
    assert (written.returncode, written.stderr) == (0, "")
    folder = tmp_path / "my-team"
    tested = make(folder, "test")
    assert tested.returncode == 0 and "4 passed" in tested.stdout, tested.stdout + tested.stderr
    ran = make(folder, "run", stdin=answer, APC_DATABASE_URL=postgres_url)
    assert ran.returncode == 0 and '"text": "The bus keeps what was said"' in ran.stdout, ran.stderr
    assert '"level": "info"' not in ran.stderr, "what went well needs no lines"
    again = ApcCommand(tmp_path)("new", "my-team")
    assert (again.returncode, again.stderr) == (
        2,
        "apc: my-team is not empty: choose another name, or empty it first\n",
    )


def test_its_dockerfile_names_programs_that_the_image_has(tmp_path: Path) -> None:
    """The environment of the image has no pip; that of the system installs into it (deploy/Dockerfile)."""
    image = (ROOT / "deploy/Dockerfile").read_text()
    assert "venv --without-pip /opt/apc" in image and "PIP_PYTHON=/opt/apc/bin/python" in image
    dockerfile = (write_project("my-team", tmp_path) / "Dockerfile").read_text()
    assert "RUN pip install" in dockerfile and "/opt/apc/bin/pip" not in dockerfile


def test_at_a_terminal_it_asks_which_kind_of_team_it_is(tmp_path: Path) -> None:
    terminal, held = pty.openpty()
    os.write(terminal, b"other\napproval\n")
    command = [sys.executable, "-m", "apc_cli", "new", "my-team"]
    done = subprocess.run(command, cwd=tmp_path, stdin=held, capture_output=True, text=True, check=False, timeout=60)
    os.close(terminal)
    os.close(held)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Which kind of team? [review]:") == 2
    assert "answer review or approval" in done.stderr
    assert "lead-approves" in (tmp_path / "my-team/my_team/rules.yml").read_text()


@pytest.mark.parametrize("kind", TeamKind)
def test_its_files_fit_their_schemas_and_each_other(kind: TeamKind, tmp_path: Path) -> None:
    folder = write_project("my-team", tmp_path, kind)
    for checker in (
        ("check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.override.yml"),
        ("check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/ci.yml"),
        ("ruff", "check", "--no-cache", "."),
        ("ruff", "format", "--no-cache", "--check", "."),
    ):
        command = [str(BIN / checker[0]), *checker[1:]]
        checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout
    write_files(folder)
    written: dict[str, Any] = yaml.safe_load((folder / "docker-compose.override.yml").read_text())
    merged = read_compose([folder / "docker-compose.yml", folder / "docker-compose.override.yml"])
    services = {name: merged["services"][name] for name in written["services"]}
    used = {secret["source"] for service in services.values() for secret in service.get("secrets", ())}
    assert set(written["secrets"]) <= used <= set(merged["secrets"])
    waiting = {name: service["depends_on"] for name, service in services.items() if "depends_on" in service}
    assert {name for needed in waiting.values() for name in needed} <= set(merged["services"])
    assert services.keys() - waiting.keys() == {"start"}, "what people run at once waits for no one-shot service"
    assert {name for name, one in services.items() if one.get("networks") == ["agents"]} == {"writer", "editor"}
    assert all(service["read_only"] and service["mem_limit"] for service in services.values())
    left = [file for file in folder.rglob("*") if file.is_file() and re.search(r"@[A-Z]+@", file.read_text())]
    assert left == []


@pytest.mark.parametrize(
    "name", ["", "../up", "/tmp/up", "a b", "Team", "my--team", "-team", "1team", "a" * 41, "ünit", "a/b", "a\n"]
)
def test_a_name_that_names_no_folder_and_module(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="cannot name a project"):
        write_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "class", "match", "pytest", "apc-client"])
def test_a_name_that_hides_another_module(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="there is a Python module"):
        write_project(name, tmp_path)


def test_folders_that_are_not_its_own(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "my-link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputUnusable, match="my-link is no folder"):
        write_project("my-link", tmp_path)
    (tmp_path / "my-file").write_text("kept")
    with pytest.raises(InputUnusable, match="my-file is no folder"):
        write_project("my-file", tmp_path)
    (tmp_path / "my-empty").mkdir()
    assert (write_project("my-empty", tmp_path) / "Makefile").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []

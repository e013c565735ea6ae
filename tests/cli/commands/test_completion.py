"""Completion in a shell: what `apc --install-completion` and `apc --show-completion` write completes commands."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from typer.main import get_group

from apc_cli.commands import app
from apc_cli.commands.applications import GROUP

INSTALLED = "apc --install-completion >&2; source .bash_completions/apc.sh"
SHOWN = "source <(apc --show-completion)"
COMPLETE = '_apc_completion apc; echo "${COMPREPLY[@]}"'


@pytest.mark.long
@pytest.mark.parametrize("taken_up", [INSTALLED, SHOWN], ids=["installed", "shown"])
def test_groups_and_their_commands_are_completed(tmp_path: Path, taken_up: str) -> None:
    typed = ("apc ''", "apc de", "apc dead-letter re")
    tries = [f"COMP_WORDS=({words}) COMP_CWORD={words.count(' ')}; {COMPLETE}" for words in typed]

    done = in_bash(tmp_path, "\n".join([taken_up, *tries]))

    every, begun, command = (line.split() for line in done.splitlines())
    # Whether this process has added the applications' commands to its own `app` depends on the tests before.
    assert set(every) == {*get_group(app).commands, *(one.name for one in entry_points(group=GROUP))}
    assert set(begun) == {"dead-letter", "demo", "deploy"}
    assert command == ["requeue"]


def test_what_is_installed_is_read_by_every_new_shell(tmp_path: Path) -> None:
    in_bash(tmp_path, INSTALLED)

    assert "apc.sh" in (tmp_path / ".bashrc").read_text()


def in_bash(home: Path, script: str) -> str:
    """Return what a script prints in a shell of a user without any settings."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", script],
        cwd=home, env={"HOME": str(home), "PATH": path}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

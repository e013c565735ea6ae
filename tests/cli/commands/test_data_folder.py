"""A data folder that cannot be used, and the copied programs of root's PostgreSQL."""

import os
import shutil
from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_data_folder_that_cannot_be_made(apc: ApcCommand, place: str) -> None:
    (apc.folder / "file").write_text("")
    (apc.folder / "question.json").write_text('{"text": "Who?"}')
    for name in ("retrieval.py", "retrieval.yml"):
        shutil.copy(EXAMPLES / "retrieval-with-critic" / name, apc.folder)

    asked = apc("run", "retrieval:team", "--input", "question.json", given={"APC_DATA_DIR": place})

    assert asked.returncode == 2
    assert asked.stderr == "apc: APC_DATA_DIR must be a folder (file is none)\n"
    assert asked.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("log", "verify"), ("session", "list"), ("chat", "--user", "ann")])
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_a_data_folder_of_another_user(apc: ApcCommand, command: tuple[str, ...]) -> None:
    (apc.folder / "data").mkdir(0o000)

    asked = apc(*command, given={"APC_DATA_DIR": "data"})

    assert asked.returncode == 2
    assert "apc: the data folder data: Permission denied" in asked.stderr


def test_there_are_no_copied_programs_to_remove(apc: ApcCommand) -> None:
    assert apc("embedded", "remove").returncode == 0

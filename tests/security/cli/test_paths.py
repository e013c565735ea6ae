"""Names that are no names, and places where nothing can be written."""

from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand

from apc_automl.run.form import write_default_table


@pytest.fixture
def apc(tmp_path: Path) -> ApcCommand:
    """Runs `apc` in the test's folder."""
    return ApcCommand(tmp_path)


@pytest.mark.parametrize("agent_id", ["../../x", "a b", "/etc/x", "z\x1b[31m"])
def test_a_key_is_written_for_an_agent_id_alone(apc: ApcCommand, agent_id: str) -> None:
    refused = apc("key", "new", agent_id)
    assert refused.returncode == 2
    assert "is no agent id" in refused.stderr
    assert not list(apc.folder.rglob("*.pem"))
    assert apc("key", "new", "an-agent").returncode == 0 and list(apc.folder.rglob("*.pem")), "of a name it is written"


@pytest.mark.parametrize(
    "command", [("automl", "run", "--budget-seconds", "5"), ("automl", "report", "--run-id", "run-1")]
)
def test_results_that_cannot_be_written_are_refused_before_the_work(apc: ApcCommand, command: tuple[str, ...]) -> None:
    (apc.folder / "file").touch()
    refused = apc(*command, "--out", "file")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("apc: --out file: File exists")


def test_the_folders_of_the_sample_table_are_private(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "plain").stat().st_mode & 0o077, "an ordinary folder may be entered by others"
    table = write_default_table(tmp_path / ".apc" / "samples")
    assert [folder.stat().st_mode & 0o777 for folder in (table.parent, table.parent.parent)] == [0o700, 0o700]

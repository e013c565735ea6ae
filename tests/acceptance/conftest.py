"""The `apc` command in a folder of its own, and one whole run that several tests look at."""

from pathlib import Path

import pytest

from apc_console.testing import ApcCommand, FinishedRun

GENERATIONS = 13
"""Two generations with transfers: they begin at 11."""


@pytest.fixture
def apc(tmp_path: Path) -> ApcCommand:
    """Runs `apc` in the test's folder."""
    return ApcCommand(tmp_path)


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """The sample table, the default seed, in one process."""
    apc = ApcCommand(tmp_path_factory.mktemp("run"))
    process = apc(
        "run", "--generations", str(GENERATIONS), "--budget-seconds", "240", "--out", "out", timeout_seconds=300
    )
    return FinishedRun(apc, process, apc.folder / "out")

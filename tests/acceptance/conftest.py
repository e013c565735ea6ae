"""The `apc` command in its own folder, and one whole run that several tests look at."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.apc_command import ApcCommand, FinishedRun

from apc_persister.database.embedded import start_embedded

GENERATIONS = 13
"""Two generations with transfers: they begin at 11."""


@pytest.fixture
def apc() -> Iterator[ApcCommand]:
    """Runs `apc` in the test's folder."""
    with _folder() as folder:
        yield ApcCommand(Path(folder))


@pytest.fixture(scope="session")
def finished_run() -> Iterator[FinishedRun]:
    """The sample table, the default seed, in one process."""
    with _folder() as folder:
        apc = ApcCommand(Path(folder))
        process = apc(
            "automl",
            "run",
            "--generations",
            str(GENERATIONS),
            "--budget-seconds",
            "500",
            "--out",
            "out",
            timeout_seconds=550,
        )
        with asyncio.Runner() as runner:  # one start of its database, not one for each command that reads the log
            database = runner.run(start_embedded(apc.folder / ".apc"))
            yield FinishedRun(apc, process, apc.folder / "out")
            runner.run(database.stop())


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Not pytest's tmp_path: as root PostgreSQL runs as its own user, and each start of another pytest closes
    the folder above tmp_path to it."""
    return tempfile.TemporaryDirectory(prefix="apc-acceptance-", ignore_cleanup_errors=True)

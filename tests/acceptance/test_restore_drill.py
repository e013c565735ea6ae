"""The drill of `make restore-drill`, with a small log: all backups come back whole, and what is lost is told."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.database.restoring import VERSION, drill
from tests.support.servers.private_postgres import find_binaries, unprivileged_user


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that Postgres may enter, whose path is short enough for a socket."""
    made = Path(tempfile.mkdtemp(prefix="apc-drill-"))
    if (user := unprivileged_user()) is not None:
        shutil.chown(made, user)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.long
@pytest.mark.postgres
@pytest.mark.skipif(find_binaries(VERSION) is None, reason=f"needs the programs of Postgres {VERSION}")
async def test_backups_come_back_and_the_lost_entries_are_told(folder: Path) -> None:
    found = await drill(500, 500, folder)

    for restored in (found.logical, found.physical, found.point_in_time):
        assert restored.wrong == (), "guard, tables, tree and projections are whole again"
        assert 0 < restored.lost == found.entries - restored.entries
        [said] = restored.said
        assert said.endswith("its tail is cut")
    assert found.logical.entries == found.physical.entries < found.point_in_time.entries == found.entries_at_point

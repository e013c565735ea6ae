"""Files in a data folder that others may enter, because it was made so: they are for their owner alone."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE

import pytest
from tests.security.strangers import as_stranger
from tests.support.installed_programs import open_folder

from apc_bus.folders import make_private_file
from apc_bus.last_resort import FILE, EndRecords
from apc_client.in_process import only_system_of
from apc_contracts.errors import InputUnusable
from apc_persister.database.embedded import start_embedded

LOCK = "system.lock"
HOLD = "import fcntl, sys; file = open(sys.argv[1]); fcntl.lockf(file, fcntl.LOCK_SH); print(); sys.stdin.read()"
"""What anybody can do who may read a file: the shared lock keeps its owner from the exclusive one."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may enter, whose owner has the usual umask."""
    before = os.umask(0o022)
    try:
        with open_folder() as path:
            yield path
    finally:
        os.umask(before)


def use(folder: Path) -> None:
    with only_system_of(folder):
        pass


@pytest.mark.parametrize("is_guarded", [False, True])
def test_nobody_else_keeps_a_system_from_its_start(folder: Path, is_guarded: bool) -> None:
    use(folder)
    if is_guarded:
        assert as_stranger("cat", str(folder / LOCK)).returncode != 0
        use(folder)
        return
    (folder / LOCK).chmod(0o644)
    assert as_stranger("cat", str(folder / LOCK)).returncode == 0
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / LOCK)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holding.stdout is not None
    holding.stdout.readline()
    try:
        with pytest.raises(InputUnusable, match="another system uses"):
            use(folder)
    finally:
        holding.communicate()


def test_what_an_older_release_left_open_is_closed(folder: Path) -> None:
    (folder / LOCK).touch(0o644)
    use(folder)
    assert S_IMODE((folder / LOCK).stat().st_mode) == 0o600


def test_a_lock_outlives_the_closing_of_its_file_to_others(folder: Path) -> None:
    """A process that opens a file once more and closes it loses its locks on it."""
    place = folder / LOCK
    make_private_file(place)
    with place.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        place.chmod(0o644)
        make_private_file(place)
        tried = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        assert subprocess.run([sys.executable, "-c", tried, str(place)], capture_output=True).returncode != 0


def modes_in(folder: Path) -> dict[str, int]:
    return {one.name: S_IMODE(one.stat().st_mode) for one in folder.iterdir()}


async def test_no_file_beside_the_data_is_open_to_others(folder: Path) -> None:
    server = await start_embedded(folder)
    try:
        EndRecords(folder).begin_run("apc.gate.0")
        with only_system_of(folder):
            modes = modes_in(folder)
    finally:
        await server.stop()
    assert {"postgres", "postgres.lock", "postgres.users", "postgres.socket", LOCK, FILE} <= set(modes)
    assert {name for name, mode in modes.items() if mode & 0o077} == set()

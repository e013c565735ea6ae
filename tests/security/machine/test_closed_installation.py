"""Another user of the machine and the programs that root's PostgreSQL runs from outside a closed folder."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.strangers import STRANGER, as_stranger
from tests.support.installed_programs import closed_wheel, open_folder, server_user, use_place

from apc_persister.database import programs
from apc_persister.database.postmaster import SERVER_USER
from apc_persister.database.programs import programs_for, remove_copies
from apc_persister.errors import EmbeddedUnavailable

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a server that another user runs")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may enter, as /var/lib is."""
    with open_folder() as path:
        yield path


@pytest.fixture
def account() -> pwd.struct_passwd:
    return server_user()


@pytest.fixture
def wheel(folder: Path) -> Path:
    """The programs' folder of an installation that root alone may enter."""
    return closed_wheel(folder / "closed")


@pytest.fixture
def place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the copies, instead of /var/lib and the folder of temporary files."""
    return use_place(folder / "lib", monkeypatch)


@pytest.mark.parametrize("plant", ["folder", "link", "open"])
def test_programs_that_a_stranger_planted_are_not_run(
    folder: Path, wheel: Path, place: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch, plant: str
) -> None:
    name = programs_for(account, wheel).relative_to(place).parts[0]
    theirs = folder / "theirs"
    (place / name).rename(theirs)
    if plant == "link":
        (place / name).symlink_to(theirs)
    else:
        theirs.rename(place / name)
        if plant == "folder":
            shutil.chown(place / name, STRANGER)
        (place / name).chmod(0o777)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(programs, "_is_closed", lambda copy, account: True)
        unguarded.setattr(programs, "_can_run", lambda account, path: path != wheel)
        assert programs_for(account, wheel) == place / name / wheel.relative_to(wheel.parents[2])
    with pytest.raises(EmbeddedUnavailable, match="so its programs are not run: remove it"):
        programs_for(account, wheel)


def test_no_copy_stands_where_a_stranger_could_replace_it(
    wheel: Path, place: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o777)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(programs, "_check_place", lambda place: None)
        copy = place / programs_for(account, wheel).relative_to(place).parts[0]
    with pytest.raises(EmbeddedUnavailable, match="other users may replace what stands in"):
        programs_for(account, wheel)
    assert as_stranger("mv", str(copy), str(place / "away")).returncode == 0, (
        "without the guard a stranger moves it away"
    )
    with pytest.raises(EmbeddedUnavailable, match="other users may replace what stands in"):
        programs_for(account, wheel)


@pytest.fixture
def temporary(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files beside the place of the copies, as /tmp is."""
    path = folder / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(path))
    return path


def test_what_a_stranger_put_into_the_temporary_folder_is_passed_over(
    wheel: Path, place: Path, temporary: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = programs_for(account, wheel)
    name = made.relative_to(place).parts[0]
    (place / name).rename(temporary / name)
    shutil.chown(temporary / name, STRANGER)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(programs, "_is_closed", lambda copy, account: True)
        unguarded.setattr(programs, "_can_run", lambda account, path: path != wheel)
        assert programs_for(account, wheel).is_relative_to(temporary)
    assert programs_for(account, wheel) == made


@pytest.mark.parametrize("owner", [STRANGER, SERVER_USER], ids=["a stranger's", "the server's user's"])
def test_a_pipe_in_the_place_of_a_stamp_is_not_waited_for(
    wheel: Path, place: Path, temporary: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """The server's user owns its copies, and may be led by a hole in the server."""
    planted = temporary / f"apc-postgres-programs-{'0' * 16}"
    planted.mkdir()
    os.mkfifo(planted / "copied")
    shutil.chown(planted, owner)
    with monkeypatch.context() as unguarded:
        unguarded.setattr(programs, "_copies_in", lambda place: place.iterdir())
        unguarded.setattr(programs, "_stamp_of", lambda copy: (copy / "copied").read_text())
        removing = threading.Thread(target=remove_copies, args=(wheel,))
        removing.start()
        os.close(os.open(planted / "copied", os.O_WRONLY))  # it waits for somebody who reads
        removing.join(60)
    removing = threading.Thread(target=remove_copies, args=(wheel,), daemon=True)
    removing.start()
    removing.join(60)
    assert not removing.is_alive()
    assert planted.exists()


def test_a_strangers_folder_stays_when_copies_are_removed(
    wheel: Path, place: Path, temporary: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a link, or hold what cannot be removed."""
    made = programs_for(account, wheel)
    name = made.relative_to(place).parts[0]
    assert as_stranger("ln", "-s", str(place), str(temporary / name)).returncode == 0
    with monkeypatch.context() as unguarded:
        unguarded.setattr(programs, "PLACES", ())
        unguarded.setattr(programs, "_copies_in", lambda place: place.iterdir())
        with pytest.raises(OSError, match="symbolic link"):
            remove_copies(wheel)
    assert remove_copies(wheel) == [place / name]


def test_a_process_of_a_stranger_does_not_keep_a_copy(
    wheel: Path, place: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = programs_for(account, wheel)
    waiting = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [str(made / "postgres"), "-c", waiting],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with monkeypatch.context() as unguarded:
            unguarded.setattr(programs, "_owner_of", lambda copy: 0)
            with pytest.raises(EmbeddedUnavailable, match=f"process {process.pid} runs PostgreSQL from"):
                remove_copies(wheel)
        assert len(remove_copies(wheel)) == 1
        process.communicate()

"""Another user of the machine and the programs that root's PostgreSQL runs from outside a closed folder."""

import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.security.strangers import STRANGER, as_stranger
from tests.support.installed_programs import closed_wheel, open_folder, server_user, use_place

from apc_persister.database import programs
from apc_persister.database.programs import programs_for
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
        unguarded.setattr(programs, "_check_owner", lambda copy, account: None)
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
    assert as_stranger("mv", str(copy), str(place / "away")).returncode == 0, (
        "without the guard a stranger moves it away"
    )
    with pytest.raises(EmbeddedUnavailable, match="other users may replace what stands in"):
        programs_for(account, wheel)

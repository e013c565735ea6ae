"""The embedded server's programs in another folder: one that is closed, as a clone in /root is, or one that is open."""

import atexit
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from apc_persister.database import programs as persister_programs
from apc_persister.database.embedded import server_account, server_programs

_NEEDED = ("postgres", "initdb", "pg_ctl", "psql")


def install_programs(folder: Path, programs: Path | None = None) -> Path:
    """Put the wheel's package into a folder, which then goes first in PYTHONPATH; return the folder of its programs."""
    programs = programs or server_programs()
    package = programs.parents[1]
    packages = package.parent
    data = (programs.parent / "share", programs.parent / "lib/postgresql", package.with_name(f"{package.name}.libs"))
    files = (path for place in data for path in place.rglob("*") if path.is_file())
    for source in (*package.glob("*.py"), *(programs / name for name in _NEEDED), *files):
        target = folder / source.relative_to(packages)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # another disk
            shutil.copy2(source, target)
    return folder / programs.relative_to(packages)


@cache
def open_programs(programs: Path | None = None) -> Path:
    """Return a folder of the programs that every user may run: the wheel's, or a copy for this process."""
    programs = programs or server_programs()
    if all(path.stat().st_mode & 0o001 for path in (programs / "psql", *programs.parents)):
        return programs
    place = Path(tempfile.mkdtemp(prefix="apc-programs-"))
    atexit.register(shutil.rmtree, place)
    place.chmod(0o755)
    return install_programs(place, programs)


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that every user may enter; it is removed in the end."""
    path = Path(tempfile.mkdtemp(prefix="apc-open-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def closed_wheel(folder: Path) -> Path:
    """Make an installation that its owner alone may enter; return the folder of its programs."""
    folder.mkdir(0o700)
    return install_programs(folder)


def server_user() -> pwd.struct_passwd:
    """Return the user that runs the server for root."""
    found = server_account()
    assert found is not None
    return found


def use_place(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder in which the copies of programs stand, instead of /var/lib and the folder of temporary files."""
    place.mkdir()
    place.chmod(0o755)
    monkeypatch.setattr(persister_programs, "PLACES", (place,))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place

"""An installation that root keeps in a closed folder, such as a clone in /root: where its PostgreSQL's programs go."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from tests.support.installed_programs import closed_wheel, open_folder, server_user, use_place

from apc_persister.database import programs
from apc_persister.database.postmaster import SERVER_USER
from apc_persister.database.programs import copies, programs_for, remove_copies
from apc_persister.errors import EmbeddedUnavailable

EXAMPLE = Path(__file__).parents[3] / "examples" / "retrieval-with-critic"
QUESTION = '{"text": "Who writes every packet into the log?"}'

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a server that another user runs")


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


def as_user(user: str, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a command as a user of the machine; for root by a sudo that asks nothing, where we are not root."""
    sudo = ("sudo", "-n", "-u", user)
    others: dict[str, Any] = {}
    if os.geteuid() == 0 and user != "root":
        others = {"user": user, "group": user, "extra_groups": ()}
    line = command if os.geteuid() == 0 else (*sudo, *command)
    return subprocess.run(line, cwd=EXAMPLE, capture_output=True, text=True, timeout=100, **others)


def wait_for_either(reached: threading.Event, running: "Future[Path]") -> None:
    """Wait until a thread has come to a place, or has ended without."""
    running.add_done_callback(lambda _: reached.set())
    assert reached.wait(60)


def can_run(programs_folder: Path) -> bool:
    """Return whether the server's user may run the programs."""
    try:
        return as_user(SERVER_USER, str(programs_folder / "initdb"), "--version").returncode == 0
    except PermissionError:
        return False


def apc_of_root(home: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run `apc` as root, with its data and the server's programs below a closed folder."""
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(home / "packages"),
        "APC_DATA_DIR": str(home / "data"),
    }
    words = [f"{name}={value}" for name, value in settings.items()]
    return as_user("root", "env", *words, sys.executable, "-m", "apc_cli", *command)


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 and (shutil.which("sudo") is None or subprocess.run(["sudo", "-n", "true"]).returncode != 0),
    reason="acts as root: needs it, or a sudo that asks nothing",
)
def test_the_commands_work_from_a_closed_folder(folder: Path) -> None:
    home = folder / "root"
    home.mkdir(0o700)
    closed = closed_wheel(home / "packages")
    (home / "question.json").write_text(QUESTION)
    ran = apc_of_root(home, "run", "retrieval:team", "--input", str(home / "question.json"))
    try:
        assert ran.returncode == 0, ran.stderr
        assert not can_run(closed), "the server's user may not enter it"
        (said,) = [line for line in ran.stderr.splitlines() if "postgres_programs_copied" in line]
        (copy,) = copies(closed)
        assert json.loads(said)["folder"] == str(copy)
        first = copy.stat()
        assert (stat.S_IMODE(first.st_mode), first.st_uid) == (0o700, pwd.getpwnam(SERVER_USER).pw_uid)
        verified = apc_of_root(home, "log", "verify")
        assert verified.returncode == 0, verified.stderr
        assert "copied" not in verified.stderr
        assert copy.stat().st_ino == first.st_ino, "the next command finds it again"
    finally:
        removed = apc_of_root(home, "embedded", "remove")
        shutil.rmtree(home / "packages")
        as_user("root", "rm", "-r", str(home / "data"))
    assert removed.stdout.startswith(f"removed {copy}")
    assert not copy.exists()
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.long
@needs_root
def test_two_installations_share_no_copy(
    folder: Path, wheel: Path, place: Path, account: pwd.struct_passwd, capfd: pytest.CaptureFixture[str]
) -> None:
    other = closed_wheel(folder / "other")
    made = {programs_for(account, wheel), programs_for(account, other)}
    assert len(made) == len(os.listdir(place)) == 2
    assert all(can_run(one) for one in made)
    assert {programs_for(account, wheel), programs_for(account, other)} == made
    shutil.rmtree(folder / "other")
    assert len(remove_copies(wheel)) == 2, "its own, and that of the installation that is gone"
    assert not os.listdir(place)


@pytest.mark.long
@needs_root
def test_another_version_replaces_the_copy(
    wheel: Path, place: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = programs_for(account, wheel)
    before = first.stat().st_ino
    monkeypatch.setattr(programs, "version", lambda name: f"{metadata.version(name)}.1")
    assert programs_for(account, wheel) == first
    assert first.stat().st_ino != before
    (first / "postgres").unlink()
    assert can_run(programs_for(account, wheel)), "a copy of which something is missing is replaced"
    assert len(os.listdir(place)) == 1


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    ("until", "is_replaced"),
    [("_files", False), ("_files", True), ("_check_owner", True)],
    ids=["copying the first", "copying another version", "having looked at another version"],
)
def test_a_copy_that_another_command_just_made_stays(
    wheel: Path,
    place: Path,
    account: pwd.struct_passwd,
    monkeypatch: pytest.MonkeyPatch,
    until: str,
    is_replaced: bool,
) -> None:
    if is_replaced:
        programs_for(account, wheel)
        monkeypatch.setattr(programs, "version", lambda name: f"{metadata.version(name)}.1")
    reached, made = threading.Event(), threading.Event()
    goes_on = getattr(programs, until)

    def waiting(*arguments: object) -> object:
        answer = goes_on(*arguments)
        if threading.current_thread() is not threading.main_thread():
            reached.set()
            assert made.wait(60)
        return answer

    monkeypatch.setattr(programs, until, waiting)
    with ThreadPoolExecutor() as pool:
        second = pool.submit(programs_for, account, wheel)
        wait_for_either(reached, second)
        first = programs_for(account, wheel)
        before = first.stat().st_ino
        made.set()
        assert second.result() == first
    assert first.stat().st_ino == before
    assert can_run(first)
    assert len(os.listdir(place)) == 1


@needs_root
def test_a_narrow_umask_closes_no_program(wheel: Path, place: Path, account: pwd.struct_passwd) -> None:
    mask = os.umask(0o077)
    try:
        assert can_run(programs_for(account, wheel))
    finally:
        os.umask(mask)


@needs_root
def test_no_place_for_a_copy(
    wheel: Path, place: Path, account: pwd.struct_passwd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "PLACES", (place / "file" / "none",))
    monkeypatch.setattr(tempfile, "tempdir", str(place / "none"))
    with pytest.raises(
        EmbeddedUnavailable, match=r"may not enter .* run this as an ordinary user, install apc-bus where"
    ):
        programs_for(account, wheel)


@pytest.mark.long
@needs_root
def test_a_copy_that_is_used_stays(wheel: Path, place: Path, account: pwd.struct_passwd) -> None:
    made = programs_for(account, wheel)
    (data := place / "data").mkdir()
    shutil.chown(data, SERVER_USER)
    options = ("-D", str(data), "-c", "listen_addresses=", "-k", str(data))
    subprocess.run(
        [str(made / "initdb"), "--no-sync", "-D", str(data)], user=SERVER_USER, cwd="/", check=True, capture_output=True
    )
    with subprocess.Popen(
        [str(made / "postgres"), *options], user=SERVER_USER, cwd="/", stderr=subprocess.DEVNULL
    ) as server:
        with pytest.raises(EmbeddedUnavailable, match=f"process {server.pid} runs PostgreSQL from"):
            remove_copies(wheel)
        server.terminate()
    assert len(remove_copies(wheel)) == 1


def test_a_path_that_the_programs_would_read_as_a_command() -> None:
    with pytest.raises(EmbeddedUnavailable, match="install it where no folder has one of"):
        programs_for(None, Path("/opt/$(id)/bin"))

"""Another user of the machine and the embedded PostgreSQL."""

import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.security.strangers import STRANGER, as_stranger, ask_as_stranger
from tests.support.installed_programs import open_programs, server_user

from apc_bus import last_resort
from apc_client import in_process
from apc_contracts.errors import InputUnusable
from apc_persister.database import embedded, postmaster
from apc_persister.database.embedded import server_programs, start_embedded
from apc_persister.database.postmaster import Postmaster
from apc_persister.errors import EmbeddedUnavailable

LONG = "long" * 30
"""The path of a socket would have more than 107 bytes."""
WHO = "SELECT rolsuper FROM pg_roles WHERE rolname = current_user"

AS_ORDINARY_USER = """
import asyncio, json, os, sys
from pathlib import Path
import concurrent.futures.thread, encodings.idna, encodings.unicode_escape, asyncpg, fasteners, psutil
from apc_persister.database.embedded import server_programs, start_embedded

server_programs()

async def main():
    server = await start_embedded(Path(sys.argv[1]))
    print(json.dumps(server.url), flush=True)
    sys.stdin.readline()
    await server.stop()

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[2]))
asyncio.run(main())
"""

LISTEN_AS_STRANGER = """
import os, pwd, socket, sys
stranger = pwd.getpwnam(sys.argv[1])
os.setgroups([])
os.setgid(stranger.pw_gid)
os.setuid(stranger.pw_uid)
os.makedirs(sys.argv[2], exist_ok=True)
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[2] + "/.s.PGSQL.5432")
server.listen()
print(os.getpid(), flush=True)
sys.stdin.read()
"""

acts_as_stranger = pytest.mark.skipif(os.geteuid() != 0, reason="runs a server as a stranger: needs root")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that others may enter: what guards the server is its own."""
    path = Path(tempfile.mkdtemp(prefix="apc-security-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["short", LONG], ids=["short path", "long path"])
def data(request: pytest.FixtureRequest, folder: Path) -> Path:
    """A data folder that others may enter: the worst that an operator can do."""
    path = folder / str(request.param)
    path.mkdir()
    path.chmod(0o755)
    return path


def socket_folder(url: str) -> Path:
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def open_the_folders(place: Path, data: Path) -> None:
    """Take away what the file system refuses; the server itself is left."""
    for path in (place, *place.parents):
        if path not in (Path("/"), Path(tempfile.gettempdir())):
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o055)
    (place / ".s.PGSQL.5432").chmod(0o777)


def let_everybody_in(data: Path, place: Path) -> None:
    """Trust every local connection, as it was once; the stranger then comes in as the superuser."""
    (data / "postgres" / "pg_hba.conf").write_text("local all all trust\n")
    os.kill(int((data / "postgres" / "postmaster.pid").read_text().splitlines()[0]), signal.SIGHUP)
    for _ in range(100):  # the server reads it when it gets to the signal
        if (let_in := ask_as_stranger(place, WHO)).returncode == 0:
            break
    assert let_in.stdout == "t\n", "the act works once the guards are away"


async def test_a_stranger_does_not_get_in(data: Path) -> None:
    server = await start_embedded(data)
    try:
        place = socket_folder(server.url)
        assert "Permission denied" in ask_as_stranger(place, WHO).stderr
        open_the_folders(place, data)
        refused = ask_as_stranger(place, WHO)
        assert "Peer authentication failed" in refused.stderr
        let_everybody_in(data, place)
    finally:
        place.chmod(0o700)
        await server.stop()


async def test_a_restart_closes_what_was_open(data: Path) -> None:
    server = await start_embedded(data)
    open_the_folders(socket_folder(server.url), data)
    let_everybody_in(data, socket_folder(server.url))
    for opened in (socket_folder(server.url), data / "postgres"):  # else PostgreSQL does not start
        opened.chmod(0o700)
    await server.stop()
    server = await start_embedded(data)
    try:
        place = socket_folder(server.url)
        open_the_folders(place, data)
        assert "Peer authentication failed" in ask_as_stranger(place, WHO).stderr
    finally:
        place.chmod(0o700)
        await server.stop()


@pytest.mark.parametrize("name", ["short", LONG], ids=["short path", "long path"])
def test_an_ordinary_users_server_is_closed_too(folder: Path, name: str) -> None:
    user = pwd.getpwnam("nobody")
    command = (sys.executable, "-c", AS_ORDINARY_USER, str(folder / name), str(user.pw_uid), str(user.pw_gid))
    environment = os.environ | {"PYTHONPATH": str(open_programs().parents[2])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        place = socket_folder(json.loads(process.stdout.readline()))
        assert "Permission denied" in ask_as_stranger(place, WHO).stderr
        open_the_folders(place, folder / name)
        assert "Peer authentication failed" in ask_as_stranger(place, WHO).stderr
        let_everybody_in(folder / name, place)
        place.chmod(0o700)
        process.stdin.close()
        assert process.wait(60) == 0


def take_it_for_ours(unguarded: pytest.MonkeyPatch, planted: Path) -> None:
    """Let the look at one folder say that it is no link, and belongs to us."""
    look = Path.lstat

    def lstat(path: Path) -> object:
        return SimpleNamespace(st_mode=stat.S_IFDIR, st_uid=os.geteuid()) if path == planted else look(path)

    unguarded.setattr(Path, "lstat", lstat)


@pytest.mark.parametrize("plant", [("ln", "-s", "elsewhere"), ("mkdir", "-m", "777")], ids=["a link", "a folder"])
async def test_a_runtime_folder_of_a_stranger_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plant: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    planted = folder / f"apc-postgres-{os.geteuid()}"
    (folder / "elsewhere").mkdir()
    assert as_stranger(*plant, str(planted)).returncode == 0
    if os.geteuid() == 0:  # for others the kernel keeps the mode of a folder that is not theirs
        with monkeypatch.context() as unguarded:
            take_it_for_ours(unguarded, planted)
            server = await start_embedded(folder / LONG)
        found = list(planted.resolve().iterdir())
        await server.stop()
        assert found == [socket_folder(server.url).resolve()], "the server's socket stands where the stranger chose"
    with pytest.raises(Exception, match="set TMPDIR"):
        await start_embedded(folder / LONG)
    assert not list(planted.iterdir())


@contextmanager
def strangers_server(place: Path) -> Iterator[int]:
    """A server of the stranger in a folder that it makes, if it is missing; its number."""
    command = (sys.executable, "-c", LISTEN_AS_STRANGER, STRANGER, str(place))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()


def trust_the_folder(unguarded: pytest.MonkeyPatch) -> None:
    unguarded.setattr(Postmaster, "_is_closed", lambda self, place: True)


def trust_the_process(unguarded: pytest.MonkeyPatch, pid: int) -> None:
    unguarded.setattr(postmaster, "_peer_of", lambda probe: (pid, server_user().pw_uid))


@acts_as_stranger
@pytest.mark.parametrize("is_guarded", [True, False])
async def test_a_strangers_data_folder_is_not_written_through(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    """As `.apc` of a folder that several users share: its links lead to files of somebody who starts apc there."""
    if not is_guarded:
        for module in (embedded, in_process, last_resort):
            monkeypatch.setattr(module, "refuse_of_another", lambda folder: None)
    data, victims = folder / "data", [folder / name for name in ("users", "system", "records")]
    data.mkdir()
    for victim in victims[:2]:
        victim.write_text("precious")
    for victim, name in zip(victims, ("postgres.users.new", "system.lock", last_resort.FILE), strict=True):
        (data / name).symlink_to(victim)
    os.chown(data, pwd.getpwnam(STRANGER).pw_uid, -1)
    refused = "it belongs to another user"
    with nullcontext() if not is_guarded else pytest.raises(InputUnusable, match=refused):
        with in_process.only_system_of(data):
            pass
    with nullcontext() if not is_guarded else pytest.raises(EmbeddedUnavailable, match=refused):
        await (await start_embedded(data)).stop()
    last_resort.EndRecords(data).ends_beside("queue", b"message")
    assert [victim.exists() and victim.read_bytes() == b"precious" for victim in victims[:2]] == [is_guarded] * 2
    assert victims[2].exists() is not is_guarded


@acts_as_stranger
@pytest.mark.parametrize("guard", ["the folder", "the process"])
async def test_a_strangers_server_is_not_taken_for_ours(
    folder: Path, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = Postmaster(folder / LONG / "postgres", server_programs(), server_user())
    place = server.socket_folder
    with strangers_server(place) as pid:
        with monkeypatch.context() as unguarded:
            trust_the_folder(unguarded)
            trust_the_process(unguarded, pid)
            assert server.is_running(), "without both guards it is"
        if guard == "the folder":
            trust_the_process(monkeypatch, pid)
        else:
            trust_the_folder(monkeypatch)
        assert not server.is_running()
        with pytest.raises(Exception, match="belongs to another user: set TMPDIR"):
            await start_embedded(folder / LONG)
        if guard == "the folder":
            assert (place / ".s.PGSQL.5432").exists(), "a path through a folder of a stranger may lead anywhere"


@acts_as_stranger
async def test_a_noted_folder_that_a_stranger_made_again_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = await start_embedded(folder / LONG)
    await server.stop()
    noted = socket_folder(server.url)
    shutil.rmtree(noted.parent)  # as a restart of the machine does
    (folder / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    with strangers_server(noted) as pid:
        with monkeypatch.context() as unguarded:
            trust_the_folder(unguarded)
            trust_the_process(unguarded, pid)
            running = Postmaster(folder / LONG / "postgres", server_programs(), server_user())
            assert running.is_running(), "without the guards the stranger's is taken for ours"
        server = await start_embedded(folder / LONG)
        assert socket_folder(server.url).is_relative_to(folder / "tmp")
        await server.stop()


@acts_as_stranger
@pytest.mark.parametrize("plant", [("ln", "-s"), ("cp", "-rT")], ids=["a link", "a folder"])
async def test_what_a_stranger_put_into_the_runtime_folder_is_not_handed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plant: tuple[str, ...]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    planted = Postmaster(folder / LONG / "postgres", server_programs(), server_user()).socket_folder
    planted.parent.mkdir()
    planted.parent.chmod(0o777)
    (folder / "elsewhere").mkdir()
    assert as_stranger(*plant, str(folder / "elsewhere"), str(planted)).returncode == 0
    before = planted.stat().st_uid
    with pytest.raises(Exception, match="belongs to another user: set TMPDIR"):
        await start_embedded(folder / LONG)
    assert planted.stat().st_uid == before
    with monkeypatch.context() as unguarded:
        unguarded.setattr(postmaster, "_check_folder", lambda folder, owners: None)
        with suppress(EmbeddedUnavailable):
            await (await start_embedded(folder / LONG)).stop()
    assert not planted.exists() or planted.stat().st_uid == server_user().pw_uid, "without the guard it is"


@pytest.mark.long
async def test_the_folders_above_stay_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    closed.mkdir(0o700)

    def open_the_way(made: Path) -> None:
        made.mkdir(0o755, parents=True, exist_ok=True)
        closed.chmod(0o755)

    with monkeypatch.context() as unguarded:
        unguarded.setattr(embedded, "make_private_folder", open_the_way)
        server = await start_embedded(closed / "other")
        await server.stop()
    assert as_stranger("ls", str(closed)).stdout == "other\n", "without the guard a stranger reads it"
    closed.chmod(0o700)
    server = await start_embedded(closed / "made" / "data")
    await server.stop()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (closed, closed / "made", closed / "made" / "data")}
    assert modes == {"closed": 0o700, "made": 0o700, "data": 0o700}
    assert (closed / "made" / "data" / "postgres").stat().st_mode & 0o077 == 0
    assert "Permission denied" in as_stranger("ls", str(closed)).stderr


def test_the_stranger_is_another_user() -> None:
    assert pwd.getpwnam(STRANGER).pw_uid != os.geteuid()

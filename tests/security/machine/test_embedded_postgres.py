"""Another user of the machine and the embedded PostgreSQL."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest
from tests.security.strangers import STRANGER, ask_as_stranger

from apc_persister.database.embedded import EmbeddedPostgres, start_embedded

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
            path.chmod(0o755)
    (place / ".s.PGSQL.5432").chmod(0o777)


async def let_everybody_in(server: EmbeddedPostgres, data: Path) -> None:
    """As it was: every local connection is trusted."""
    (data / "postgres" / "pg_hba.conf").write_text("local all all trust\n")
    connection = await asyncpg.connect(server.url)
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


async def test_a_stranger_does_not_get_in(data: Path) -> None:
    server = await start_embedded(data)
    try:
        place = socket_folder(server.url)
        assert "Permission denied" in ask_as_stranger(place, WHO).stderr
        open_the_folders(place, data)
        refused = ask_as_stranger(place, WHO)
        assert "Peer authentication failed" in refused.stderr
        await let_everybody_in(server, data)
        for _ in range(100):  # the reload is a signal
            if (let_in := ask_as_stranger(place, WHO)).returncode == 0:
                break
        assert let_in.stdout == "t\n", "the act works once both guards are away"
    finally:
        place.chmod(0o700)
        await server.stop()


async def test_a_restart_closes_what_was_open(data: Path) -> None:
    server = await start_embedded(data)
    await let_everybody_in(server, data)
    open_the_folders(socket_folder(server.url), data)
    for _ in range(100):  # the reload is a signal
        if (let_in := ask_as_stranger(socket_folder(server.url), WHO)).returncode == 0:
            break
    assert let_in.stdout == "t\n", "it was open"
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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        place = socket_folder(json.loads(process.stdout.readline()))
        assert "Permission denied" in ask_as_stranger(place, WHO).stderr
        open_the_folders(place, folder / name)
        assert "Peer authentication failed" in ask_as_stranger(place, WHO).stderr
        place.chmod(0o700)
        process.stdin.close()
        assert process.wait(60) == 0


async def test_a_runtime_folder_of_a_stranger_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    planted = folder / f"apc-postgres-{os.geteuid()}"
    (folder / "elsewhere").mkdir()
    planted.symlink_to(folder / "elsewhere")
    with pytest.raises(Exception, match="set TMPDIR"):
        await start_embedded(folder / LONG)
    assert not list((folder / "elsewhere").iterdir())


async def test_the_folders_above_stay_as_they_are(folder: Path) -> None:
    closed = folder / "closed"
    closed.mkdir(0o700)
    server = await start_embedded(closed / "made" / "data")
    await server.stop()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (closed, closed / "made", closed / "made" / "data")}
    assert modes == {"closed": 0o700, "made": 0o700, "data": 0o700}
    assert (closed / "made" / "data" / "postgres").stat().st_mode & 0o077 == 0


def test_the_stranger_is_another_user() -> None:
    assert pwd.getpwnam(STRANGER).pw_uid != os.geteuid()

"""The embedded PostgreSQL: its folder, its users, and its deaths."""

import asyncio
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import psutil
import pytest

from apc_bus.database import check_durability
from apc_persister.database.embedded import server_account, server_programs, start_embedded
from apc_persister.database.postmaster import Postmaster
from apc_persister.errors import EmbeddedUnavailable

USE = """
import asyncio, sys
from pathlib import Path
from apc_persister.database.embedded import start_embedded

async def main():
    server = await start_embedded(Path(sys.argv[1]))
    print(server.url, flush=True)
    sys.stdin.readline()
    await server.stop()

asyncio.run(main())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's folder: each run of pytest closes that one for other users, the server's among them."""
    path = Path(tempfile.mkdtemp(prefix="apc-embedded-"))
    yield path
    shutil.rmtree(path)


async def answers(url: str) -> bool:
    try:
        connection = await asyncpg.connect(url)
    except OSError:
        return False
    try:
        return bool(await connection.fetchval("SELECT 1"))
    finally:
        await connection.close()


def postmaster(data: Path) -> psutil.Process:
    return psutil.Process(int((data / "postgres" / "postmaster.pid").read_text().split()[0]))


def is_over(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@asynccontextmanager
async def another_user(folder: Path) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """Another process that uses the server, with the URL that it got; it leaves when its input ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", USE, str(folder), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().strip()
    finally:
        await process.communicate(b"")


def remove_socket(folder: Path) -> None:
    """What a cleaner of /tmp does; a command with another /tmp sees the same."""
    (folder / "postgres" / ".s.PGSQL.5432").unlink()


async def test_it_starts_holds_data_and_stops(folder: Path) -> None:
    server = await start_embedded(folder / "new" / "data")
    connection = await asyncpg.connect(server.url)
    await check_durability(connection)
    await connection.execute("CREATE DATABASE other")
    await connection.close()
    assert await answers(server.url_of("other"))
    await server.stop()
    assert not await answers(server.url)
    again = await start_embedded(folder / "new" / "data")
    assert await answers(again.url_of("other"))
    await again.stop()


async def test_a_path_too_long_for_a_socket(folder: Path) -> None:
    server = await start_embedded(folder / ("long" * 30))
    assert await answers(server.url)
    await server.stop()


async def test_a_path_with_special_characters(folder: Path) -> None:
    server = await start_embedded(folder / "50%20+more=1#ü")
    assert await answers(server.url)
    await server.stop()


async def test_a_path_that_a_shell_would_read(folder: Path) -> None:
    path = folder / "my data; touch b && $(touch c) `touch d` \"'\\,"
    server = await start_embedded(path)
    assert await answers(server.url)
    await server.stop()
    assert not await answers(server.url)
    assert os.listdir(folder) == [path.name]
    assert (path / "postgres" / "PG_VERSION").exists()


async def test_a_path_that_is_no_text(folder: Path) -> None:
    server = await start_embedded(folder / os.fsdecode(b"caf\xe9"))
    assert await answers(server.url)
    await server.stop()


async def test_a_path_of_two_lines_is_refused(folder: Path) -> None:
    with pytest.raises(EmbeddedUnavailable, match="control character in its path: choose another"):
        await start_embedded(folder / "a\nb")
    assert not os.listdir(folder)


async def test_settings_for_another_server_have_no_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "5433")
    server = await start_embedded(folder)
    monkeypatch.delenv("PGPORT")
    assert await answers(server.url)
    await server.stop()


async def test_a_locale_that_this_machine_does_not_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "xx_YY.UTF-8")
    server = await start_embedded(folder)
    assert await answers(server.url)
    await server.stop()


async def test_a_folder_that_holds_something_else(folder: Path) -> None:
    (folder / "postgres").mkdir()
    (folder / "postgres" / "PG_VERSION").write_text("18\n")
    if account := server_account():
        os.chown(folder / "postgres", account.pw_uid, account.pw_gid)
    with pytest.raises(EmbeddedUnavailable, match="did not start"):
        await start_embedded(folder)
    (folder / "postgres" / "PG_VERSION").rename(folder / "postgres" / "letter")
    with pytest.raises(EmbeddedUnavailable, match="holds something that is no database: move it away"):
        await start_embedded(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
async def test_a_database_of_another_user(folder: Path) -> None:
    await (await start_embedded(folder)).stop()
    shutil.chown(folder / "postgres", "games")
    with pytest.raises(EmbeddedUnavailable, match="belongs to the user games, and PostgreSQL would run as pgserver"):
        await start_embedded(folder)
    os.chown(folder / "postgres", 54321, 54321)
    with pytest.raises(EmbeddedUnavailable, match=r"belongs to the user 54321, .* `chown -R pgserver`"):
        await start_embedded(folder)


async def test_making_the_cluster_was_killed_half_way(folder: Path) -> None:
    (folder / "postgres.new").mkdir()
    (folder / "postgres.new" / "PG_VERSION").write_text("18\n")
    server = await start_embedded(folder)
    assert await answers(server.url)
    await server.stop()
    assert not (folder / "postgres.new").exists()


async def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(EmbeddedUnavailable, match="did not start"):
        await start_embedded(folder / "file")


async def test_the_postmaster_was_killed(folder: Path) -> None:
    server = await start_embedded(folder)
    postmaster(folder).send_signal(signal.SIGKILL)
    again = await start_embedded(folder)
    assert await answers(again.url)
    await again.stop()
    assert again.url == server.url


def own_number() -> str:
    """Return the number of a process that is alive, and no server."""
    return f"{os.getpid()}\n"


@pytest.mark.long
@pytest.mark.parametrize("left", [b"", b"no number\n", b"OURS", b"-1\n", b"\xff\0", b"9" * 30])
async def test_files_that_a_fault_left_stop_no_start(folder: Path, left: bytes) -> None:
    await (await start_embedded(folder)).stop()
    for name in ("postgres/postmaster.pid", "postgres.users", "postgres.socket", "postgres.lock"):
        (folder / name).write_bytes(left.replace(b"OURS", str(os.getpid()).encode()))
    server = await start_embedded(folder)
    assert await answers(server.url)
    await server.stop()
    assert not await answers(server.url)


@pytest.mark.long
async def test_the_number_of_a_dead_server_is_that_of_another_process(folder: Path) -> None:
    server = await start_embedded(folder)
    file = folder / "postgres" / "postmaster.pid"
    _, *rest = file.read_text().splitlines()
    postmaster(folder).send_signal(signal.SIGKILL)
    file.write_text(own_number() + "\n".join(rest) + "\n")
    (folder / "postgres" / ".s.PGSQL.5432.lock").write_text(own_number())
    again = await start_embedded(folder)
    assert await answers(again.url)
    await again.stop()
    await server.stop()


async def test_a_server_is_stopped_whatever_its_file_says(folder: Path) -> None:
    server = await start_embedded(folder)
    running = postmaster(folder)
    (folder / "postgres" / "postmaster.pid").write_text("")
    await server.stop()
    assert is_over(running)


async def test_a_server_without_its_socket_is_stopped_too(folder: Path) -> None:
    server = await start_embedded(folder)
    running = postmaster(folder)
    remove_socket(folder)
    await server.stop()
    assert is_over(running)


@pytest.mark.long
async def test_a_used_server_without_its_socket_is_left_alone(folder: Path) -> None:
    async with another_user(folder) as (user, url):
        inside = await asyncpg.connect(url)
        running = postmaster(folder)
        remove_socket(folder)
        with pytest.raises(EmbeddedUnavailable, match=rf"end the commands that use it, or `kill -INT {running.pid}`"):
            await start_embedded(folder)
        assert postmaster(folder).pid == running.pid, "without this file it would shut itself down within a minute"
        assert await inside.fetchval("SELECT 1")
        await inside.close()
    assert user.returncode == 0
    assert is_over(running), "its last user stopped it"


@pytest.mark.long
async def test_a_server_without_its_socket_that_nobody_uses_is_started_again(folder: Path) -> None:
    async with another_user(folder) as (user, _):
        user.kill()
    running = postmaster(folder)
    remove_socket(folder)
    server = await start_embedded(folder)
    assert is_over(running)
    assert await answers(server.url)
    await server.stop()


@pytest.mark.long
@pytest.mark.parametrize("is_backend", [False, True], ids=["postmaster", "backend"])
async def test_the_number_of_a_dead_server_is_that_of_another_server(folder: Path, is_backend: bool) -> None:
    other = await start_embedded(folder / "other")
    server = await start_embedded(folder / "dead")
    file = folder / "dead" / "postgres" / "postmaster.pid"
    _, *rest = file.read_text().splitlines()
    postmaster(folder / "dead").kill()
    number = postmaster(folder / "other").children()[0].pid if is_backend else postmaster(folder / "other").pid
    file.write_text("\n".join((str(number), *rest)) + "\n")
    again = await start_embedded(folder / "dead")
    assert await answers(again.url)
    await again.stop()
    assert await answers(other.url)
    await other.stop()
    await server.stop()


@pytest.mark.long
async def test_a_copied_folder_has_another_server(folder: Path) -> None:
    await (await start_embedded(folder / "first")).stop()
    shutil.copytree(folder / "first", folder / "second")
    if account := server_account():
        for path in ((folder / "second" / "postgres"), *(folder / "second" / "postgres").rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
    first = await start_embedded(folder / "first")
    second = await start_embedded(folder / "second")
    assert first.url != second.url
    await second.stop()
    assert await answers(first.url)
    await first.stop()


@pytest.mark.parametrize("left", ["", "no number"])
async def test_a_frozen_server_runs_whatever_its_file_says(folder: Path, left: str) -> None:
    """Its queue is full: nobody who asks it for its number gets in."""
    server = await start_embedded(folder)
    frozen = postmaster(folder)
    (folder / "postgres" / "postmaster.pid").write_text(left)
    frozen.suspend()
    with ExitStack() as waiting:
        waiting.callback(frozen.resume)
        with suppress(BlockingIOError):
            while True:
                one = waiting.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(str(folder / "postgres" / ".s.PGSQL.5432"))
        assert Postmaster(folder / "postgres", server_programs(), server_account()).is_running()
    await server.stop()
    assert is_over(frozen)


@pytest.mark.long
async def test_the_last_user_stops_it(folder: Path) -> None:
    server = await start_embedded(folder)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", USE, str(folder), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() == server.url
    await server.stop()
    assert await answers(server.url), "the other process still uses it"
    process.stdin.write(b"\n")
    await process.communicate()
    assert process.returncode == 0
    assert not await answers(server.url)


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="gives up a right of root")
async def test_root_of_a_container_may_not_look_at_the_servers_process(folder: Path) -> None:
    """Without CAP_SYS_PTRACE, which containers do not have, the folder in which a process works cannot be read."""
    confined = (
        "setpriv",
        "--inh-caps=-sys_ptrace",
        "--bounding-set=-sys_ptrace",
        sys.executable,
        "-c",
        USE,
        str(folder),
    )
    first = await asyncio.create_subprocess_exec(
        *confined, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert first.stdin is not None and first.stdout is not None
    url = (await first.stdout.readline()).decode().strip()
    working = Path(f"/proc/{postmaster(folder).pid}/cwd")
    looked = await asyncio.create_subprocess_exec(
        *confined[:3], "readlink", str(working), stdout=asyncio.subprocess.PIPE
    )
    assert (await looked.communicate())[0] == b""
    with suppress(PermissionError):  # this test may run in such a container itself
        assert os.readlink(working), "with the right it can be read"
    second = await asyncio.create_subprocess_exec(
        *confined, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await second.communicate(b"\n")
    assert (second.returncode, said.decode().strip()) == (0, url)
    assert await answers(url), "the first still uses it"
    first.stdin.write(b"\n")
    await first.communicate()
    assert first.returncode == 0
    assert not await answers(url)


async def test_a_killed_user_does_not_keep_it_running(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", USE, str(folder), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().strip()
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    assert await answers(url), "it lives on, for the one who comes next"
    server = await start_embedded(folder)
    await server.stop()
    assert not await answers(url)

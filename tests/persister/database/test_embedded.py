"""The embedded PostgreSQL: its folder, its users, and its deaths."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest

from apc_bus.database import check_durability
from apc_persister.database.embedded import start_embedded
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


@pytest.mark.parametrize("name", ["my data", "a;touch b", "$(id)", "`id`", "a&b", 'a"b', "a'b"])
async def test_a_path_that_a_shell_would_read_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(EmbeddedUnavailable, match="choose another"):
        await start_embedded(folder / name)
    assert not os.listdir(folder)


async def test_a_folder_that_holds_something_else(folder: Path) -> None:
    (folder / "postgres").mkdir()
    (folder / "postgres" / "PG_VERSION").write_text("18\n")
    with pytest.raises(EmbeddedUnavailable, match="did not start"):
        await start_embedded(folder)


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

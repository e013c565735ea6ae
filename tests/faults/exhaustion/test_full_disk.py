"""Matrix row 40: the disk of the database is full. The log waits, nothing is acknowledged, and it catches up."""

import asyncio
import os
import random
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from tests.faults.conftest import Deploy
from tests.support.traffic import until

from apc_persister.database.embedded import start_embedded
from apc_persister.database.migrate import migrate

DISK = "size=400m,mode=0755"
CONFIRMED_BEFORE, MORE = 100, 300
CHUNK = bytes(1 << 20)
Record = Callable[[str, Any, float], None]


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """Its own file system, in memory."""
    folder = Path(tempfile.mkdtemp(prefix="apc-embedded-"))
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        folder.rmdir()
        pytest.fail(f"not exercised: a disk that can be filled is mounted, and that is root's to do: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)
    folder.rmdir()


@pytest.fixture
async def small_database(small_disk: Path) -> AsyncIterator[str]:
    """The URL of a migrated database on that disk."""
    server = await start_embedded(small_disk)
    await migrate(server.url)
    yield server.url
    empty(small_disk)
    await (await start_embedded(small_disk)).stop()


def fill(folder: Path) -> None:
    """Take what is left of the disk, to the last byte."""
    with (folder / "ballast").open("wb", buffering=0) as ballast:
        for chunk in (CHUNK, CHUNK[:4096], CHUNK[:1]):
            with suppress(OSError):
                while ballast.write(chunk):
                    pass
    free = os.statvfs(folder).f_bavail
    assert free == 0, f"not exercised: {free} blocks are free"


def empty(folder: Path) -> None:
    """Give it back."""
    (folder / "ballast").unlink(missing_ok=True)


@pytest.mark.faults
@pytest.mark.timeout(300)
async def test_the_disk_of_the_database_is_full(
    amqp_vhost_url: str, small_disk: Path, small_database: str, deploy: Deploy, record: Record
) -> None:
    """The log writer calls the database away, whatever it says of the disk; senders go on meanwhile."""
    async with deploy(amqp_vhost_url, small_database) as deployment:
        await deployment.open_session()
        services = {name: await deployment.serve(name) for name in ("persister", "orchestrator")}
        async with deployment.working():
            async with deployment.sending(random.Random(40)):
                await until(deployment.confirms.reach(CONFIRMED_BEFORE))
                await asyncio.to_thread(fill, small_disk)
                await until(services["persister"].says("log_database_away"), 60)
                await until(deployment.confirms.reach(MORE), 60)
                empty(small_disk)
                await start_embedded(small_disk)
                repaired_at = monotonic()
                await until(deployment.confirms.reach(MORE), 60)
            await deployment.drain(patience=120)
        await deployment.check(fenced_allowed=True)
        said = await asyncio.to_thread((small_disk / "postgres.log").read_text)
        assert "No space left on device" in said, "not exercised: the server had room"
        record("the database's disk full", deployment, repaired_at)

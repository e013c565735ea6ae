"""Who has the bucket takes away or changes what a reader needs: an error with its place, never fewer rows."""

import shutil
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from tests.support.log.archived import ReleasedLog, full_log

from apc_log.archive import BLOCK, MANIFEST
from apc_log.errors import ArchiveDiffers, ArchiveError, ArchiveUnavailable
from apc_log.queries.packets import list_agent_packets
from apc_web.pool import open_reader

pytestmark = [pytest.mark.postgres, pytest.mark.long]
SESSION = "session-of-run-0"
WAIT = timedelta(seconds=60)


@pytest.fixture
async def released(postgres_url: str, tmp_path: Path) -> AsyncIterator[ReleasedLog]:
    """A log with two released segments."""
    async with full_log(postgres_url, tmp_path) as log:
        await log.release()
        yield log


@pytest.fixture
async def reader(
    released: ReleasedLog, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[asyncpg.Pool]:
    """The pool of the console, which may only read."""
    monkeypatch.setenv("APC_ARCHIVE_URL", str(released.archive.location))
    monkeypatch.setenv("APC_DATA_DIR", str(released.folder))
    pool = await open_reader(postgres_url, WAIT)
    yield pool
    await pool.close()


def remove(path: Path, _: Path) -> None:
    """Take an object away."""
    path.unlink()


def change(path: Path, _: Path) -> None:
    """Change a byte of it."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def swap(path: Path, other: Path) -> None:
    """Put the object of the other segment in its place."""
    shutil.copyfile(other, path)


async def test_an_object_that_is_not_the_archived_one_is_an_error_with_its_place(
    released: ReleasedLog, reader: asyncpg.Pool, postgres_url: str
) -> None:
    """Without the guard of the reading, TRANSFERs and EVALs alone would come, as if there had been no more."""
    honest = await list_agent_packets(reader, session_id=SESSION, limit=100_000)
    unguarded = await list_agent_packets.__wrapped__(reader, session_id=SESSION, limit=100_000)  # type: ignore[attr-defined]
    assert 0 < len(unguarded) < len(honest)

    first, second = (Path(released.archive.location) / place for place in released.places)
    acts: list[tuple[Callable[[Path, Path], None], str, type[ArchiveError]]] = [
        (remove, "packet.parquet", ArchiveUnavailable),
        (change, "packet.parquet", ArchiveDiffers),
        (swap, "packet.parquet", ArchiveDiffers),
        (remove, MANIFEST, ArchiveUnavailable),
        (change, MANIFEST, ArchiveDiffers),
        (swap, MANIFEST, ArchiveDiffers),
    ]
    for act, name, kind in acts:
        kept = (second / name).read_bytes()
        act(second / name, first / name)
        # A manifest that has the digest of the log is kept by who read it: another reader has none yet.
        asked = reader if name != MANIFEST else await open_reader(postgres_url, WAIT)
        with pytest.raises(kind) as caught:
            await list_agent_packets(asked, session_id=SESSION, limit=100_000)
        if asked is not reader:
            await asked.close()
            assert await list_agent_packets(reader, session_id=SESSION, limit=100_000) == honest
        assert (caught.value.segment, caught.value.name) == (released.places[1], name), act  # type: ignore[attr-defined]
        (second / name).unlink(missing_ok=True)
        (second / name).write_bytes(kept)
    assert await list_agent_packets(reader, session_id=SESSION, limit=100_000) == honest
    assert any(row.seq > BLOCK for row in honest)

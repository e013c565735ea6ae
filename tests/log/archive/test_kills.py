"""An archiver that is killed at each of its steps: the next one completes the segment, with the same bytes."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import asyncpg
import pytest
from tests.support.log.archived import ArchivedLog
from tests.support.log.killing import KILLS

from apc_log.archive import BLOCK, MANIFEST, OBJECTS
from apc_log.cold_verification import verify_cold
from apc_persister.archiving import archive_segment

pytestmark = [pytest.mark.postgres, pytest.mark.long]
PROGRAM = """
import asyncio, sys, asyncpg
from pathlib import Path
from apc_log.archive import Archive, BLOCK
from apc_persister.archiving import archive_segment

async def main(url, folder, name):
    connection = await asyncpg.connect(url)
    archive = Archive(folder, name, cache=Path(folder) / "no-cache")
    await archive_segment(connection, archive, 0, 1, BLOCK, folder=Path(folder))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("time", range(KILLS))
@pytest.mark.parametrize(
    ("point", "written"),
    [
        ("archiver.before_object", 0),
        ("archiver.after_object", 1),
        ("archiver.after_object:4", 4),
        ("archiver.after_object:7", 7),
        ("archiver.after_manifest", 8),
        ("archiver.after_reading_back", 8),
    ],
)
async def test_the_next_run_completes_it(
    archived: ArchivedLog, tmp_path: Path, point: str, written: int, time: int
) -> None:
    copy, manifest = archived.at(tmp_path / "archive"), archived.manifests[0]
    copy.folder.mkdir()
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, archived.url, str(copy.folder), archived.log_name),
        env={**os.environ, "APC_CRASH_AT": point},
    )
    assert await killed.wait() == -signal.SIGKILL
    there = {path.name for path in (copy.folder / manifest.place).glob("*")}
    assert there == {*OBJECTS, MANIFEST} & set((*OBJECTS, MANIFEST)[:written])
    connection = await asyncpg.connect(archived.url)
    assert await archive_segment(connection, copy.archive(), 0, 1, BLOCK) == manifest
    await connection.close()
    report = await verify_cold(copy.archive(), archived.key, checkpoints=archived.checkpoints)
    assert (report.findings, report.size) == ([], BLOCK)

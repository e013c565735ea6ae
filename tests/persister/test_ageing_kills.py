"""An archiver that is killed at each step of a segment: the next one goes on, nothing is lost, nothing is twice."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.persister.test_ageing import AgeingLog, ageing
from tests.support.log.killing import KILLS

__all__ = ["ageing"]
PROGRAM = """
import asyncio, sys, asyncpg
from datetime import timedelta
from pathlib import Path
from apc_log.archive import Archive
from apc_persister.ageing import Ageing, Policy

async def main(url, folder, name):
    connection = await asyncpg.connect(url)
    archive = Archive(folder, name, cache=Path(folder) / "no-cache")
    async for step in Ageing(connection, archive, Policy(release_after=timedelta(0))).run():
        await connection.execute(
            "INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) VALUES (0, 'held', 1000000)"
            " ON CONFLICT (shard, target) DO NOTHING"
        )

asyncio.run(main(*sys.argv[1:]))
"""
RECORDS = "SELECT kind, detail ->> 'first_seq' AS first FROM apc_log.log_events WHERE kind IN ('segment', 'release')"


async def run(url: str, folder: Path, name: str, point: str = "") -> int:
    """Run an archiver in a process until it ends, or is killed at a point."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, url, str(folder), name), env={**os.environ, "APC_CRASH_AT": point}
    )
    return await process.wait()


@pytest.mark.long
@pytest.mark.parametrize("time", range(KILLS))
async def test_a_killed_archiver_is_followed_by_one_that_goes_on(
    ageing: AgeingLog, postgres_url: str, tmp_path: Path, time: int
) -> None:
    folder, name = tmp_path / "archive", ageing.archive.origin(0).rpartition("/")[0]
    counts = (
        "SELECT count(*), sum(seq) FROM apc_log.agent_packets WHERE packet_type IN ('TRANSFER', 'EVAL') OR seq > 131072"
    )
    before = await ageing.connection.fetchrow(counts)
    for point in ("before_record", "after_record", "after_thin", "after_swap", "after_drop"):
        assert await run(postgres_url, folder, name, f"archiver.{point}") == -signal.SIGKILL, point
        assert await ageing.connection.fetch("SELECT * FROM apc_guard.faults()") == []
        assert (await ageing.verify()).findings == []
        await ageing.export()
    assert await run(postgres_url, folder, name) == 0
    assert await ageing.states() == ["released", "released", "open"]
    records = await ageing.connection.fetch(RECORDS)
    assert sorted(map(tuple, records)) == [(kind, first) for kind in ("release", "segment") for first in ("1", "65537")]
    assert await ageing.connection.fetchrow(counts) == before
    detached = (
        "SELECT relname FROM pg_class WHERE relname ~ '^agent_packets_0_' AND relkind = 'r' AND NOT relispartition"
    )
    assert await ageing.connection.fetch(detached) == []
    assert (await ageing.verify()).findings == []

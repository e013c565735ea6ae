"""`apc log rebuild`: what stands beside the log is rebuilt from its entries, and is what it was."""

from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log import LogBench, disable_guards, lifecycle, packet_entry

from apc_log.batch import Entry
from apc_persister.errors import TreeBroken
from apc_persister.rebuild import COUNTS, Rebuilt, rebuild_projections

BESIDE = (*COUNTS, "log_edges", "agents")
SPOILED = (
    "UPDATE apc_log.task_tallies SET evals = evals + 7",
    "DELETE FROM apc_log.task_tallies WHERE task_id = 'task-1'",
    "INSERT INTO apc_log.protocol_tallies VALUES (0, 'p', 'x', false, '', 9, 9, 9, 9, 9)",
    "UPDATE apc_log.log_edges SET hashes = ARRAY[sha256('x')]",
)


@pytest.fixture
async def written(bench: LogBench) -> LogBench:
    """A log of 304 entries with metrics in it."""
    await bench.gate.open()
    for run in ("run-1", "run-2"):
        for task in ("task-1", "task-2"):
            entries: list[Entry] = []
            for _ in range(19):
                packet = packet_entry(run_id=run, task_id=task, packet_type="EVAL")
                entries += [packet, *lifecycle(packet)]
            await bench.gate.log(entries)
            await bench.write()
    return bench


async def beside(connection: asyncpg.Connection) -> dict[str, list[tuple[Any, ...]]]:
    return {table: sorted(map(tuple, await connection.fetch(f"SELECT * FROM apc_log.{table}"))) for table in BESIDE}


async def rebuild(url: str) -> Rebuilt:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SET SESSION AUTHORIZATION apc_owner")
        return await rebuild_projections(connection)
    finally:
        await connection.close()


async def test_what_was_spoiled_is_what_it_was(written: LogBench, postgres_url: str) -> None:
    connection = await asyncpg.connect(postgres_url)
    before = await beside(connection)
    for statement in SPOILED:
        await connection.execute(statement)
    assert await beside(connection) != before
    done = await rebuild(postgres_url)
    assert (done.shards, done.edges) == (1, 1)
    assert await beside(connection) == before
    assert (await rebuild(postgres_url)).edges == 0
    await connection.close()


async def test_the_writer_goes_on_behind_it(written: LogBench, postgres_url: str) -> None:
    await written.pool.execute("DELETE FROM apc_log.log_edges")
    await written.gate.log([packet_entry()])
    with pytest.raises(TreeBroken):
        await written.write()
    await rebuild(postgres_url)
    await written.write()
    assert await written.pool.fetchval("SELECT max(tree_size) FROM apc_log.log_checkpoints") == 305


async def test_entries_that_were_changed_rebuild_nothing(written: LogBench, postgres_url: str) -> None:
    await disable_guards(written.pool)
    await written.pool.execute("UPDATE apc_log.packet_events SET actor = 'x' WHERE seq = 3")
    await written.pool.execute("UPDATE apc_log.task_tallies SET evals = 99")
    await written.pool.execute("DELETE FROM apc_log.log_edges")
    with pytest.raises(TreeBroken, match="do not give the root"):
        await rebuild(postgres_url)
    assert await written.pool.fetchval("SELECT count(*) FROM apc_log.task_tallies WHERE evals = 99") == 4


async def test_the_command_says_what_it_did(written: LogBench, postgres_url: str, tmp_path: Path) -> None:
    done = ApcCommand(tmp_path)("log", "rebuild", given={"APC_DATABASE_URL": postgres_url})
    assert done.returncode == 0, done.stderr
    assert "1 shard: 4 rows of counts rebuilt, 0 edges of the tree mended" in done.stdout

"""Runs at rest are added to the sums beside the log writer, one after another; those that go on are not."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest
from tests.support.log import LogBench, packet_entry
from tests.support.waiting import until

from apc_log.batch import Entry, LineageEntry, PacketEntry
from apc_persister.service import REST, RunSums
from apc_persister.verification.derived import compare_derived

SUMS = "SELECT task_id, tasks FROM apc_log.protocol_sums ORDER BY task_id"
UNSUMMED = "SELECT run_id FROM apc_log.unsummed_runs ORDER BY run_id"
HOLD = "LOCK TABLE apc_log.summed_uses IN SHARE UPDATE EXCLUSIVE MODE"


def transfer(run_id: str, task_id: str) -> list[Entry]:
    packet: PacketEntry = packet_entry(run_id=run_id, task_id=task_id, packet_type="TRANSFER")
    lineage = LineageEntry(
        packet.session_id, packet.packet_id, "p", [], [], False, "COMMONS_SEED", "red", "blue", 0.5, 0.5
    )
    return [packet, lineage]


async def write(bench: LogBench, *entries: Entry) -> None:
    await bench.gate.log([*entries])
    await bench.write()


def reads(pool: asyncpg.Pool, query: str, *expected: tuple[object, ...]) -> Callable[[], Awaitable[bool]]:
    """A condition: these are the rows."""

    async def holds() -> bool:
        return [tuple(row) for row in await pool.fetch(query)] == [*expected]

    return holds


def counted(sums: RunSums, number: int) -> Callable[[], Awaitable[bool]]:
    """A condition: so many runs were summed; the count follows the commit that readers see."""

    async def holds() -> bool:
        assert sums.summed <= number, "a run that did not go on is left alone"
        return sums.summed == number

    return holds


async def test_a_run_is_summed_when_it_rests_and_again_when_it_went_on(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"), *transfer("run-2", "task-1"))
    stop, sums = asyncio.Event(), RunSums(bench.pool, rest=timedelta(0), interval=timedelta(milliseconds=10))
    running = asyncio.create_task(sums.run(stop))
    await until(counted(sums, 2))
    assert await reads(bench.pool, UNSUMMED)()
    assert await reads(bench.pool, SUMS, ("task-1", 2))()

    await write(bench, *transfer("run-2", "task-2"))
    await until(reads(bench.pool, SUMS, ("task-1", 2), ("task-2", 1)))
    await until(counted(sums, 3))
    stop.set()
    await running


async def test_a_run_that_goes_on_is_left_alone(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"))
    sum_runs = "SELECT apc_log.sum_runs($1, 10)"
    assert await bench.pool.fetchval(sum_runs, datetime.now(UTC) - timedelta(hours=1)) == 0
    assert await reads(bench.pool, UNSUMMED, ("run-1",))()
    assert await bench.pool.fetchval(sum_runs, datetime.now(UTC) + timedelta(hours=1)) == 1
    assert await reads(bench.pool, UNSUMMED)()


@pytest.mark.parametrize("forged", [2**63 - 1, 0, 4])
async def test_the_place_up_to_which_a_run_is_summed_is_one_of_its_verdicts(bench: LogBench, forged: int) -> None:
    """Otherwise a run could be said to go on, and what it has added would be compared with nothing."""
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"), *transfer("run-2", "task-1"))
    assert await bench.pool.fetchval("SELECT apc_log.sum_runs($1, 10)", datetime.now(UTC) + timedelta(hours=1)) == 2
    async with bench.pool.acquire() as connection:
        assert await compare_derived(connection) == []
        await connection.execute("UPDATE apc_log.run_changes SET summed_seq = $1 WHERE run_id = 'run-1'", forged)
        (finding,) = await compare_derived(connection)
        assert finding.place.startswith("run_changes run_id=run-1")


async def test_two_processes_do_not_sum_at_once(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"))
    sum_runs = "SELECT apc_log.sum_runs($1, 10)"
    soon = datetime.now(UTC) + timedelta(hours=1)
    async with bench.pool.acquire() as other, other.transaction():
        await other.execute(HOLD)
        assert await bench.pool.fetchval(sum_runs, soon) == 0
    assert await bench.pool.fetchval(sum_runs, soon) == 1


async def test_a_run_that_goes_on_while_it_is_summed_is_not_at_rest(bench: LogBench) -> None:
    """Its counts move on in the middle: the sums hold what was added, and the run is read from the counts."""
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"))
    async with bench.pool.acquire() as other, other.transaction():
        await other.execute("SELECT apc_log.sum_run('run-1')")
        # What sum_run saw is older than this: as if the writer had committed between its first look and its end.
        await other.execute("UPDATE apc_log.run_changes SET seq = seq + 1")
    assert await reads(bench.pool, UNSUMMED, ("run-1",))()
    assert await reads(bench.pool, SUMS, ("task-1", 1))()


async def test_the_log_writer_sums(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"))
    await bench.pool.execute("UPDATE apc_log.run_changes SET judged_at = judged_at - $1::interval", REST)
    async with bench.writing():
        await until(reads(bench.pool, SUMS, ("task-1", 1)))


async def test_the_writer_may_sum_and_a_reader_may_not(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, *transfer("run-1", "task-1"))
    async with bench.pool.acquire() as connection:
        for role, may in (("apc_reader", False), ("apc_writer", True)):
            await connection.execute(f"SET SESSION AUTHORIZATION {role}")
            try:
                if may:
                    assert await connection.fetchval("SELECT apc_log.sum_runs(now() + interval '1 hour', 10)") == 1
                else:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await connection.execute("SELECT apc_log.sum_run('run-1')")
            finally:
                await connection.execute("RESET SESSION AUTHORIZATION")
    assert await reads(bench.pool, SUMS, ("task-1", 1))()

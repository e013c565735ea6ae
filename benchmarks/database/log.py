"""A long log: what it costs to append to, to verify, and to prove from, and how that grows."""

import os
import time
from dataclasses import dataclass

import asyncpg
import psutil

from apc_bus.database import open_pool
from apc_bus.settings import PersisterSettings
from apc_log.heads import AnyConnection
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.documents import find_packet, prove_entry
from apc_persister.verification.chunks import Helpers, start_helpers
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.verify import verify_shard
from benchmarks.database.log_load import PACKETS_A_RUN, open_loader
from benchmarks.database.log_reading import add_readings, p95_ms, read_log
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers

FIRST = 10_000
SAMPLE = 5_000
"""Packets whose append is timed, behind the first ones and behind all."""
VERIFY_BAR = 100_000
GROWTH_BAR = 1.15
PROVE_BAR_MS = 20
_SOME = """
SELECT (SELECT packet_id FROM apc_log.agent_packets WHERE shard = 0 AND seq >= head.last * n / 41
        ORDER BY seq LIMIT 1) AS packet_id
FROM generate_series(0, 40) AS n, (SELECT max(seq) AS last FROM apc_log.agent_packets) AS head
"""

_SUM_A_RUN = """
SELECT apc_log.sum_runs((SELECT max(judged_at) FROM apc_log.run_changes) - interval '1 second', 1)
"""


async def measure_log(servers: Servers, figures: Figures, rows: int) -> None:
    """Load `rows` packets with three hops each into a fresh database, and measure what reads it."""
    url = await servers.fresh_database()
    pool = await open_pool(url, max_size=4)
    loader = await open_loader(pool)
    await loader.load(FIRST)
    await pool.execute("VACUUM ANALYZE")
    readings = await read_log(pool)
    before = _resident_mb()
    first = await loader.load(SAMPLE)
    if rows > FIRST + 2 * SAMPLE:
        await loader.load(rows - FIRST - 2 * SAMPLE)
    last = await loader.load(SAMPLE)
    after = _resident_mb()
    await loader.close()
    summed = await _sum_runs(pool)
    await pool.execute("VACUUM ANALYZE")
    figures.add(summed)
    figures.add(
        Figure("log_append_first", first.rate, "packets/s", note=f"behind {FIRST:,} packets; hops and tree included"),
        Figure("log_append_last", last.rate, "packets/s", first.rate, 1 / GROWTH_BAR, note=f"behind {rows:,} packets"),
        Figure("log_writer_memory", after, "MB", before, note="resident, the loader's packets included"),
    )
    async with pool.acquire() as connection:
        await _measure_verify(connection, url, figures)
        await _measure_derived(connection, figures)
        await _measure_prove(connection, figures)
    add_readings(figures, readings, await read_log(pool))
    await pool.close()


async def _sum_runs(pool: asyncpg.Pool) -> Figure:
    """As the persister does for runs at rest: all but those of the last second."""
    began, runs = time.perf_counter(), 0
    while await pool.fetchval(_SUM_A_RUN):
        runs += 1
    taken_ms = 1000 * (time.perf_counter() - began) / max(runs, 1)
    note = f"{runs} runs of {PACKETS_A_RUN:,} packets, once each when they rest, beside the writer"
    return Figure("log_sum_a_run", taken_ms, "ms a run", is_time=True, note=note)


def _resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


async def _measure_verify(connection: AnyConnection, url: str, figures: Figures) -> None:
    """In this process alone, as `apc log verify` does on two CPUs; then by one process a CPU, their start included."""
    processes = len(os.sched_getaffinity(0))
    alone = await _verify(connection, None)
    began = time.perf_counter()
    async with start_helpers(url, processes) as helpers:
        shared = await _verify(connection, helpers)
        rate = shared.entries / (time.perf_counter() - began)
    note = f"{alone.entries:,} entries, all recomputed, by one process"
    figures.add(
        Figure("log_verify", alone.entries / alone.seconds, "entries/s", VERIFY_BAR, 1.0, note=note),
        Figure("log_verify_shared", rate, "entries/s", note=f"the same by {processes} processes"),
        Figure("log_verify_cpu", alone.cpu_us, "µs an entry", note="of that process; Postgres takes its own"),
    )


@dataclass(frozen=True, slots=True)
class _Verified:
    entries: int
    seconds: float
    cpu_us: float


async def _verify(connection: AnyConnection, helpers: Helpers | None) -> _Verified:
    began, cpu = time.perf_counter(), time.process_time()
    report = await verify_shard(connection, 0, load_signer(PersisterSettings()).public_key(0), helpers=helpers)
    assert not report.findings, report.findings
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    return _Verified(report.entries, seconds, 1e6 * used / report.entries)


async def _measure_derived(connection: AnyConnection, figures: Figures) -> None:
    """Compare what stands beside the entries, row by row, with what follows from them."""
    began = time.perf_counter()
    findings = await compare_derived(connection)
    assert not findings, findings
    figures.add(Figure("log_verify_derived", time.perf_counter() - began, "s", is_time=True, note="in Postgres alone"))


async def _measure_prove(connection: AnyConnection, figures: Figures) -> None:
    """Packets from all over the log; finding them by id is part of it."""
    key = load_signer(PersisterSettings()).public_key(0)
    rows = await connection.fetch(_SOME)
    ids = iter([row["packet_id"] for row in rows])

    async def prove() -> None:
        shard, seq = await find_packet(connection, next(ids))
        await prove_entry(connection, key, shard, seq)

    figures.add(Figure("log_prove", await p95_ms(prove, len(rows)), "ms p95", PROVE_BAR_MS, 1.0, is_time=True))

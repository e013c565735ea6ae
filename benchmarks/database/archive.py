"""The archive of a long log: what it costs to write, to keep, to verify without the database, and to read."""

import os
import random
import shutil
import statistics
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import cast

import asyncpg
import psutil
from msgspec.structs import replace
from tests.support.log import divide, packet_entry
from tests.support.servers import S3Server

from apc_bus.database import open_pool
from apc_bus.settings import ArchiveSettings, PersisterSettings
from apc_contracts.contract.contract import load_contract
from apc_log.archive import BLOCK, MANIFEST, OBJECTS, Archive, Manifest
from apc_log.batch import PacketEntry, SessionUpdate
from apc_log.cold import open_cold
from apc_log.cold_verification import verify_cold
from apc_log.heads import READING, read_ends, read_tree_sizes
from apc_log.offline_verifier import PublicKey, parse_note
from apc_log.queries import Position, trace
from apc_log.queries.agents import list_invocations
from apc_log.queries.packet_pages import page_of_packets
from apc_log.thawing import read_archive
from apc_persister.ageing import Ageing, Policy, record_segment
from apc_persister.archiving import archive_segment
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.follower import Follower
from benchmarks.database.log_load import open_loader, runs_of_packets
from benchmarks.database.log_reading import p95_ms
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers

WRITE_BAR, VERIFY_BAR = 20_000, 300_000
BYTES_BAR, PAGE_BAR_MS = 800, 100
_BADLY_PACKED = 20_000
"""Packets whose bodies compress badly: one segment of them."""
_PAGES = 30
S3_BAR_MS, SEGMENTS_BAR_MS = 2_000, 50
_S3_TIMES = 10
_SMALL_SEGMENT, _SMALL_RUN = 1024, 2_000
_MERGED_NOTES = {
    "archive_merged_page": "the first 100 packets of a released run as the CLI and the console read them",
    "archive_merged_page_middle": "the same from the middle of the run",
    "archive_merged_page_all": "the first 100 packets of the log",
    "archive_merged_newest": "the last 100 packets of the run, as the console lists them",
    "archive_merged_packet": "one packet by its id",
}
_EXPORTED = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) SELECT 0, 'held', next_seq FROM apc_log.shards
ON CONFLICT DO NOTHING
"""
_LOCKS = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'relation'"
_NOTES = "SELECT note FROM apc_log.log_checkpoints WHERE shard = 0 ORDER BY tree_size"


async def measure_archive(servers: Servers, figures: Figures, rows: int) -> None:
    """Load `rows` packets with three hops each, archive them in segments of 2^16 entries, and read those."""
    with tempfile.TemporaryDirectory(prefix="apc-bench-archive-") as folder:
        key = load_signer(PersisterSettings()).public_key(0)
        archive = Archive(Path(folder) / "archive", key.name.rpartition("/")[0], cache=Path(folder) / "cache")
        async with _loaded(await servers.fresh_database(), rows) as pool:
            manifests = await _measure_writing(pool, archive, figures, "archive")
            notes = [row["note"] for row in await pool.fetch(_NOTES)]
            await _release(pool, archive, manifests)
            await _measure_merged(pool, archive, Path(folder), figures)
            await _measure_s3(pool, archive, manifests, Path(folder), figures)
        await _measure_verifying(archive, key, notes, figures)
        await _measure_reading(archive, manifests, figures)
        other = Archive(Path(folder) / "other", key.name.rpartition("/")[0], cache=Path(folder) / "cache")
        async with _loaded(await servers.fresh_database(), _BADLY_PACKED, _random_packets()) as pool:
            await _measure_writing(pool, other, figures, "archive_random")


@asynccontextmanager
async def _loaded(url: str, rows: int, packets: Iterator[PacketEntry] | None = None) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(url, max_size=4)
    loader = await open_loader(pool, packets, _ended)
    await loader.load(rows)
    await loader.close()
    await pool.execute("VACUUM ANALYZE")
    yield pool
    await pool.close()


def _ended(packet: PacketEntry, step: int) -> SessionUpdate:
    """Return the session of a packet as one that has ended: it may be let go of."""
    return SessionUpdate(packet.session_id, packet.run_id, "CLOSED", True, 0, 0, step, 0, b"{}")


def _random_packets() -> Iterator[PacketEntry]:
    """Packets without end, each with 880 characters of text that has no pattern."""
    numbers = random.Random(7)
    while True:
        text = b64encode(numbers.randbytes(660)).decode()
        packet = packet_entry(run_id="run-0", session_id="run-0", text=text)
        yield replace(packet, packet_hash=sha256(packet.body).digest())


async def _measure_writing(pool: asyncpg.Pool, archive: Archive, figures: Figures, name: str) -> list[Manifest]:
    manifests = []
    async with pool.acquire() as connection:
        size = (await read_tree_sizes(connection))[0]
        began, cpu = time.perf_counter(), time.process_time()
        for first in range(1, size - BLOCK + 2, BLOCK):
            manifests.append(await archive_segment(connection, archive, 0, first, first + BLOCK - 1))
        seconds, used = time.perf_counter() - began, time.process_time() - cpu
    entries = len(manifests) * BLOCK
    packets = sum(manifest.counts["packet"] for manifest in manifests)
    stored = sum(one.size for manifest in manifests for one in manifest.objects)
    note = f"{len(manifests)} segments of {BLOCK:,} entries, read back and verified"
    is_barred = name == "archive"
    figures.add(
        Figure(f"{name}_write", entries / seconds, "entries/s", WRITE_BAR if is_barred else None, 1.0, note=note),
        Figure(f"{name}_write_cpu", 1e6 * used / entries, "µs an entry", note="of that process alone"),
        Figure(
            f"{name}_bytes", stored / packets, "bytes a packet", BYTES_BAR if is_barred else None, 1.0, is_time=True,
            note=f"{packets:,} packets with hops, leaves and ids" if is_barred else "bodies that compress badly",
        ),
        Figure(f"{name}_memory", psutil.Process().memory_info().rss / 1e6, "MB", note="resident afterwards"),
    )  # fmt: skip
    return manifests


async def _measure_verifying(archive: Archive, key: PublicKey, notes: list[str], figures: Figures) -> None:
    kept = [parse_note(note).check(key) for note in notes]
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    report = await verify_cold(archive, key, checkpoints=kept)
    seconds, used = time.perf_counter() - began, sum(os.times()[:4]) - cpu
    assert not report.findings, report.findings
    note = f"{report.entries:,} entries, {report.compared} kept checkpoints, on {len(os.sched_getaffinity(0))} CPUs"
    figures.add(
        Figure("archive_verify", report.entries / seconds, "entries/s", VERIFY_BAR, 1.0, note=note),
        Figure("archive_verify_cpu", 1e6 * used / report.entries, "µs an entry", note="over all CPUs and processes"),
    )


async def _measure_reading(archive: Archive, manifests: list[Manifest], figures: Figures) -> None:
    note = f"100 packets of a run, from {len(manifests)} segments in a folder"
    async with open_cold(archive, manifests) as cold:
        rows = await cold.packets(run_id="run-1", limit=1_000)
        ids = [(row["session_id"], row["packet_id"]) for row in rows[:100]]
        chosen = iter([rows[number % len(rows)]["packet_id"] for number in range(0, 7 * _PAGES, 7)])
        readings = {
            "archive_trace_page": await p95_ms(lambda: cold.packets(run_id="run-1"), _PAGES),
            "archive_page_hops": await p95_ms(lambda: cold.hops(packets=ids), _PAGES),
            "archive_find_packet": await p95_ms(lambda: cold.find_packet(next(chosen)), _PAGES),
        }
    for name, taken_ms in readings.items():
        bar = PAGE_BAR_MS if name == "archive_trace_page" else None
        figures.add(Figure(name, taken_ms, "ms p95", bar, 1.0, is_time=True, note=note))


# The same over a log that was released: what `apc packet trace` and the console read, cold and hot merged.


async def _release(pool: asyncpg.Pool, archive: Archive, manifests: list[Manifest]) -> None:
    """Record the archived segments and let go of them."""
    await Follower(pool).catch_up()
    async with pool.acquire() as connection:
        for manifest in manifests:
            await record_segment(connection, manifest)
        await connection.execute(_EXPORTED)
        steps = [step.done async for step in Ageing(connection, archive, Policy(release_after=timedelta(0))).run()]
    assert steps == ["released"] * len(manifests), steps
    await pool.execute("VACUUM ANALYZE")


async def _measure_merged(pool: asyncpg.Pool, archive: Archive, folder: Path, figures: Figures) -> None:
    read_archive(pool, ArchiveSettings(archive_url=archive.location, data_dir=folder))
    rows = (await trace(pool, run_id="run-1", limit=_PAGES)).packets
    ids = cycle([row.packet.packet_id for row in rows])
    end = Position(0, 0)
    for part in (await trace(pool, run_id="run-1", limit=5_000)).packets:
        end = part.packet.position
    readings: Mapping[str, Callable[[], Awaitable[object]]] = {
        "archive_merged_page": lambda: trace(pool, run_id="run-1", limit=100),
        "archive_merged_page_middle": lambda: trace(pool, run_id="run-1", limit=100, after=end),
        "archive_merged_page_all": lambda: trace(pool, limit=100),
        "archive_merged_newest": lambda: page_of_packets(pool, {"run_id": "run-1"}, newest=True, after=None, limit=100),
        "archive_merged_packet": lambda: trace(pool, packet_id=next(ids), limit=1),
    }
    for name, reading in readings.items():
        taken_ms = await p95_ms(reading, _PAGES)
        bar = PAGE_BAR_MS if name == "archive_merged_page" else None
        figures.add(Figure(name, taken_ms, "ms p95", bar, 1.0, is_time=True, note=_MERGED_NOTES[name]))


async def _measure_s3(
    pool: asyncpg.Pool, archive: Archive, manifests: list[Manifest], folder: Path, figures: Figures
) -> None:
    """Read pages of runs that are not in the cache yet, from an S3 server on this machine."""
    with S3Server() as server, _environment(server.account.environment()):
        url = f"s3://{S3Server.BUCKET}/archive"
        settings = ArchiveSettings(archive_url=url, data_dir=folder / "s3", archive_allow_http=True)
        copied = Archive.open(settings, archive.origin(0).rpartition("/")[0])
        for manifest in manifests:
            for name in (*OBJECTS, MANIFEST):
                await copied.put(manifest.place, name, Path(archive.location) / manifest.place / name)
        first = []
        for number in range(_S3_TIMES):
            shutil.rmtree(folder / "s3", ignore_errors=True)
            read_archive(pool, settings)
            began = time.perf_counter()
            await trace(pool, run_id=f"run-{1 + number % 3}", limit=100)
            first.append(1000 * (time.perf_counter() - began))
        cached = await p95_ms(lambda: trace(pool, run_id="run-1", limit=100), _PAGES)
    note = "the first page of a run, nothing in the cache; an S3 server on the same machine"
    taken_ms = statistics.quantiles(first, n=20)[-1]
    figures.add(
        Figure("archive_s3_page", taken_ms, "ms p95", S3_BAR_MS, 1.0, is_time=True, note=note),
        Figure("archive_s3_page_cached", cached, "ms p95", None, 1.0, is_time=True, note="the same from the cache"),
    )


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


# Many segments in the database: a page reads few of them, and locks as few.


async def measure_segments(servers: Servers, figures: Figures) -> None:
    """Read a log of 64 segments in one shard, and one of 16 shards with 4 each, as the web console does."""
    for name, shards, segments in (("64", 1, 64), ("16x4", 16, 4)):
        url = await servers.fresh_database()
        superuser = await asyncpg.connect(url)
        for shard in range(shards):
            await divide(superuser, entries=_SMALL_SEGMENT, segments=segments + 1, shard=shard)
        await superuser.close()
        pool = await open_pool(url, max_size=2)
        for shard in range(shards):
            loader = await open_loader(pool, runs_of_packets(f"run-{shard}", _SMALL_RUN), _ended, shard=shard)
            while (await read_ends(pool))[shard] < segments * _SMALL_SEGMENT:
                await loader.load(50, 50)
            await loader.close()
        await Follower(pool).catch_up()
        await pool.execute("VACUUM ANALYZE")
        await pool.close()
        pool = await open_pool(url, max_size=1, server_settings=READING)
        await _read_segments(pool, name, shards // 2, figures)
        await pool.close()


async def _read_segments(pool: asyncpg.Pool, name: str, shard: int, figures: Figures) -> None:
    server = psutil.Process(await pool.fetchval("SELECT pg_backend_pid()"))
    middle = Position(shard, (await read_ends(pool))[shard] // 2)
    rows = (await trace(pool, limit=_PAGES, after=middle)).packets
    run_id, ids = rows[0].packet.run_id, cycle([row.packet.packet_id for row in rows])
    in_run = (await trace(pool, run_id=run_id, limit=200)).packets[-1].packet.position
    newest = partial(page_of_packets, newest=True, after=None, limit=100)
    readings: Mapping[str, Callable[[asyncpg.Pool], Awaitable[object]]] = {
        "packet": lambda one: trace(one, packet_id=next(ids), limit=1),
        "page_all": lambda one: trace(one, limit=100),
        "page_middle": lambda one: trace(one, limit=100, after=middle),
        "page_run": lambda one: trace(one, run_id=run_id, limit=100),
        "page_run_behind": lambda one: trace(one, run_id=run_id, limit=100, after=in_run),
        "newest": lambda one: newest(one, {}),
        "newest_run": lambda one: newest(one, {"run_id": run_id}),
        "agent": lambda one: list_invocations(one, load_contract(), rows[0].packet.sender_agent_id),
    }
    for reading, work in readings.items():
        await work(pool)
        began = server.cpu_times()
        taken_ms = await p95_ms(partial(work, pool), _PAGES)
        ended = server.cpu_times()
        cpu_ms = 1000 * (ended.user + ended.system - began.user - began.system) / _PAGES
        locks = await _locks_of(pool, work)
        note = f"{cpu_ms:.0f} ms of the server's CPU, {locks:,} locks; {name} segments of {_SMALL_SEGMENT:,} entries"
        figures.add(
            Figure(f"segments_{name}_{reading}", taken_ms, "ms p95", SEGMENTS_BAR_MS, 1.0, is_time=True, note=note)
        )


async def _locks_of(pool: asyncpg.Pool, work: Callable[[asyncpg.Pool], Awaitable[object]]) -> int:
    """Return how many locks the statements of a reading hold together at the end, were it one transaction."""
    async with pool.acquire() as connection, connection.transaction(readonly=True):
        await work(cast(asyncpg.Pool, connection))
        return int(await connection.fetchval(_LOCKS))

"""The archive of a long log: what it costs to write, to keep, to verify without the database, and to read."""

import os
import random
import tempfile
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import asyncpg
import psutil
from msgspec.structs import replace
from tests.support.log import packet_entry

from apc_bus.database import open_pool
from apc_bus.settings import PersisterSettings
from apc_log.archive import BLOCK, Archive, Manifest
from apc_log.batch import PacketEntry
from apc_log.cold import open_cold
from apc_log.cold_verification import verify_cold
from apc_log.heads import read_tree_sizes
from apc_log.offline_verifier import PublicKey, parse_note
from apc_persister.archiving import archive_segment
from apc_persister.evidence.checkpoint import load_signer
from benchmarks.database.log_load import open_loader
from benchmarks.database.log_reading import p95_ms
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.servers import Servers

WRITE_BAR, VERIFY_BAR = 20_000, 300_000
BYTES_BAR, PAGE_BAR_MS = 800, 100
_BADLY_PACKED = 20_000
"""Packets whose bodies compress badly: one segment of them."""
_PAGES = 30
_NOTES = "SELECT note FROM apc_log.log_checkpoints WHERE shard = 0 ORDER BY tree_size"


async def measure_archive(servers: Servers, figures: Figures, rows: int) -> None:
    """Load `rows` packets with three hops each, archive them in segments of 2^16 entries, and read those."""
    with tempfile.TemporaryDirectory(prefix="apc-bench-archive-") as folder:
        key = load_signer(PersisterSettings()).public_key(0)
        archive = Archive(Path(folder) / "archive", key.name.rpartition("/")[0], cache=Path(folder) / "cache")
        async with _loaded(await servers.fresh_database(), rows) as pool:
            manifests = await _measure_writing(pool, archive, figures, "archive")
            notes = [row["note"] for row in await pool.fetch(_NOTES)]
        await _measure_verifying(archive, key, notes, figures)
        await _measure_reading(archive, manifests, figures)
        other = Archive(Path(folder) / "other", key.name.rpartition("/")[0], cache=Path(folder) / "cache")
        async with _loaded(await servers.fresh_database(), _BADLY_PACKED, _random_packets()) as pool:
            await _measure_writing(pool, other, figures, "archive_random")


@asynccontextmanager
async def _loaded(url: str, rows: int, packets: Iterator[PacketEntry] | None = None) -> AsyncIterator[asyncpg.Pool]:
    pool = await open_pool(url, max_size=4)
    loader = await open_loader(pool, packets)
    await loader.load(rows)
    await loader.close()
    await pool.execute("VACUUM ANALYZE")
    yield pool
    await pool.close()


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
    began, cpu = time.perf_counter(), time.process_time()
    report = await verify_cold(archive, key, checkpoints=kept)
    seconds, used = time.perf_counter() - began, time.process_time() - cpu
    assert not report.findings, report.findings
    note = f"{report.entries:,} entries, {report.compared} kept checkpoints, on {len(os.sched_getaffinity(0))} CPUs"
    figures.add(
        Figure("archive_verify", report.entries / seconds, "entries/s", VERIFY_BAR, 1.0, note=note),
        Figure("archive_verify_cpu", 1e6 * used / report.entries, "µs an entry", note="over all CPUs"),
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

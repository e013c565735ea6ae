"""A log that ages while it is written: segments are archived and let go of beside a writer; in the end all is verified.

The writer is a process, `python -m benchmarks.database.ageing URL PACKETS FILE`: the file gets when it wrote.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from apc_bus.database import open_pool
from apc_bus.settings import PersisterSettings
from apc_log.archive import Archive
from apc_log.batch import PacketEntry, SessionUpdate
from apc_log.cold_verification import verify_cold
from apc_log.heads import AnyConnection
from apc_log.offline_verifier import parse_note
from apc_persister.ageing import Ageing, Policy
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.evidence.export import Exporter
from apc_persister.follower import Follower
from apc_persister.verification.verify import verify_shard
from benchmarks.database.log_load import PACKETS_A_RUN, open_loader, runs_of_packets
from benchmarks.support.figures import Figure, Figures
from benchmarks.support.processes import running
from benchmarks.support.servers import Servers

SEGMENT_ENTRIES = 2**20
SWAP_BAR_MS, WRITER_BAR_MS = 250, 500
TYPES = (*("IDEA", "STATE") * 9, "EVAL", "TRANSFER")
"""Evaluations and transfers stay in the database."""
_KEY = "APC_LOG_KEY_FILE"
_SWAP = "SELECT apc_guard.release("
# What a swap waits for: the pieces of projections, and the transaction that is under way in the shard.
_WAIT = (
    "SET LOCAL lock_timeout = '10s'",
    "SELECT FROM apc_log.followed WHERE shard = 0 ORDER BY projection FOR UPDATE",
    "SELECT FROM apc_log.shards WHERE shard = 0 FOR UPDATE",
)
_SIZE = "SELECT pg_database_size(current_database())"
_HOT = "SELECT count(*) FROM apc_log.agent_packets"
_NOTES = "SELECT note FROM apc_log.log_checkpoints WHERE shard = 0 ORDER BY tree_size"
_LEAVES = "SELECT next_seq - 1 FROM apc_log.shards WHERE shard = 0"
_THIN = """
SELECT count(*) FROM apc_log.agent_packets AS packet JOIN apc_log.segments AS segment
ON packet.shard = segment.shard AND packet.seq BETWEEN segment.first_seq AND segment.last_seq AND state = 'released'
"""


class TimedConnection:
    """A connection that tells when a swap held up the writer: (begin, end) on the clock that all processes share."""

    def __init__(self, connection: AnyConnection) -> None:
        self._connection = connection
        self.swaps: list[tuple[float, float]] = []
        self.waited: list[float] = []
        """Seconds that a swap waited before that, and held up nobody."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    async def fetchval(self, statement: str, *arguments: object) -> Any:
        """Take one statement."""
        if not statement.startswith(_SWAP):
            return await self._connection.fetchval(statement, *arguments)
        asked = began = time.monotonic()
        try:
            async with self._connection.transaction():
                for wait in _WAIT:
                    await self._connection.execute(wait)
                began = time.monotonic()
                return await self._connection.fetchval(statement, *arguments)
        finally:
            self.waited.append(began - asked)
            self.swaps.append((began, time.monotonic()))


async def measure_ageing(servers: Servers, figures: Figures, rows: int) -> None:
    """Write `rows` packets while segments of 2^20 entries are archived and let go of; none may be lost or doubled."""
    url = await servers.fresh_database()
    pool = await open_pool(url, max_size=8)
    with tempfile.TemporaryDirectory(prefix="apc-bench-ageing-") as folder:
        key = load_signer(PersisterSettings()).public_key(0)
        archive = Archive(Path(folder) / "archive", key.name.rpartition("/")[0], cache=Path(folder) / "cache")
        stop = asyncio.Event()
        exporter = Exporter(pool, 1, f"file://{folder}/notes", timedelta(seconds=1))
        follower = Follower(pool, segment_entries=SEGMENT_ENTRIES)
        beside = [asyncio.create_task(one.run(stop)) for one in (exporter, follower)]
        try:
            began = time.monotonic()
            async with pool.acquire() as connection:
                timed = TimedConnection(cast(AnyConnection, connection))
                transactions, most = await _age_beside_a_writer(timed, archive, follower, url, rows)
                taken = time.monotonic() - began
                await _tell(timed, transactions, most, taken, figures)
                await _verify(connection, archive, rows, figures)
        finally:
            stop.set()
            await asyncio.gather(*beside)
            await pool.close()


async def _age_beside_a_writer(
    timed: TimedConnection, archive: Archive, follower: Follower, url: str, rows: int
) -> tuple[list[tuple[float, float]], int]:
    """Return when the writer's transactions were under way, and the most bytes that the database had."""
    ageing = Ageing(cast(AnyConnection, timed), archive, Policy(release_after=timedelta(0)))
    most = 0
    is_written = False
    with tempfile.NamedTemporaryFile(suffix=".json") as times:
        words = ("-m", "benchmarks.database.ageing", url, str(rows), times.name)
        async with running("writer", *words, environment={_KEY: os.environ[_KEY]}) as writer:
            while True:
                steps = [step.done async for step in ageing.run()]
                most = max(most, await timed.fetchval(_SIZE))
                if is_written and not {"archived", "released"} & set(steps):
                    break
                if writer.process.returncode is None:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(writer.process.wait(), 1)
                elif writer.process.returncode:
                    raise RuntimeError(f"the writer ended: {list(writer.lines)}")
                else:
                    await follower.catch_up()
                    await asyncio.sleep(2)  # until the exporter has looked again
                    is_written = True
        return json.load(times), most


async def _tell(
    connection: TimedConnection,
    transactions: Sequence[tuple[float, float]],
    most: int,
    taken: float,
    figures: Figures,
) -> None:
    swaps = connection.swaps
    beside = [
        1e3 * (ended - began)
        for began, ended in transactions
        if any(began < swapped and swap < ended for swap, swapped in swaps)
    ]
    others = sorted(1e3 * (ended - began) for began, ended in transactions)
    entries = await connection.fetchval(_LEAVES)
    note = f"{len(swaps)} segments of up to {SEGMENT_ENTRIES:,} entries, beside a writer"
    figures.add(
        Figure("ageing_swap", 1e3 * max(ended - began for began, ended in swaps), "ms, the longest", SWAP_BAR_MS, 1.0,
               is_time=True, note=note),
        Figure("ageing_wait", 1e3 * max(connection.waited), "ms, the longest",
               note="for projections and the transaction under way; nobody waits for it meanwhile"),
        Figure("ageing_writer", max(beside, default=0.0), "ms, the longest", WRITER_BAR_MS, 1.0, is_time=True,
               note=f"{len(beside)} transactions of 500 packets beside a swap"),
        Figure("ageing_writer_p99", others[int(0.99 * len(others))], "ms", note=f"all {len(others):,} transactions"),
        Figure("ageing_rate", entries / taken, "entries/s", note=f"{entries:,} entries written and let go of together"),
        Figure("ageing_most", most / 1e9, "GB", note="of the database, at most"),
        Figure("ageing_left", await connection.fetchval(_SIZE) / 1e9, "GB", note="of the database, in the end"),
    )  # fmt: skip


async def _verify(connection: AnyConnection, archive: Archive, rows: int, figures: Figures) -> None:
    """Count and verify both places. Raises AssertionError."""
    key = load_signer(PersisterSettings()).public_key(0)
    kept = [parse_note(row["note"]).check(key) for row in await connection.fetch(_NOTES)]
    cold = await verify_cold(archive, key, checkpoints=kept)
    hot = await verify_shard(connection, 0, key)
    assert not cold.findings and not hot.findings, (cold.findings, hot.findings)
    segments = await connection.fetch(
        "SELECT first_seq, last_seq, manifest FROM apc_log.segments WHERE state = 'released'"
    )
    manifests = [await archive.read_manifest(0, row["first_seq"], None) for row in segments]
    archived = sum(one.counts["packet"] for one in manifests)
    both, hot_rows = await connection.fetchval(_THIN), await connection.fetchval(_HOT)
    lost = rows - (archived + hot_rows - both)
    assert not lost, f"{rows} packets were written, {archived} stand in the archive, {hot_rows} in the database"
    figures.add(
        Figure("ageing_lost", lost, "packets", note=f"{archived:,} archived, {both:,} of them in the database too"),
        Figure(
            "ageing_verified", cold.entries, "entries", note="of the archive, and the database's own, without a finding"
        ),
    )


async def _write(url: str, packets: int) -> list[tuple[float, float]]:
    """Write so many packets; the session of a run ends with its last. Return when each transaction was under way."""
    pool = await open_pool(url, max_size=2)
    loader = await open_loader(pool, runs_of_packets(types=TYPES), _session)
    transactions = []
    for _ in range(0, packets, 500):
        began = time.monotonic()
        await loader.load(500)
        transactions.append((began, time.monotonic()))
    await loader.close()
    await pool.close()
    return transactions


def _session(packet: PacketEntry, step: int) -> SessionUpdate:
    has_ended = step % PACKETS_A_RUN == 0
    state = "CLOSED" if has_ended else "RESEARCHING"
    return SessionUpdate(packet.session_id, packet.run_id, state, has_ended, 0, 0, step, 0, b"{}")


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(asyncio.run(_write(sys.argv[1], int(sys.argv[2])))))

"""How often the writers of a process begin transactions: busy shards share the pace of one, and its transactions."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import msgspec
import pytest
from tests.support.log import LogBench, ScriptedGate, packet_entry, session_row
from tests.support.waiting import until

from apc_bus.database import open_pool
from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_persister import writer
from apc_persister.evidence.checkpoint import load_signer
from apc_persister.service import Persister
from apc_persister.transaction import Committed, Part, commit_together
from apc_persister.verification.verify import verify_shard
from apc_persister.writer import BUSY_SECONDS, MOST_BUSY, Pace

INTERVAL = 0.05
SHARDS = 4
SHARED = """
SELECT max(shards) FROM (SELECT count(DISTINCT shard) AS shards FROM apc_log.agent_packets GROUP BY recorded_at) AS one
"""
"""The most shards that a transaction wrote to: its rows have one time."""
LOCK = "SELECT FROM apc_log.shards WHERE shard = 1 FOR UPDATE"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still unless a test moves it."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(writer, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_the_interval_grows_with_the_busy_shards_up_to_a_bound(clock: SimpleNamespace) -> None:
    pace = Pace(timedelta(seconds=INTERVAL))
    assert pace.rest(0) <= 0, "the first one does not wait"
    clock.now = 2520 * INTERVAL  # which divides by each number of shards: a moment of the common clock
    for shard in range(MOST_BUSY + 5):
        pace.begin(shard)
        assert pace.rest(0) == pytest.approx(INTERVAL * min(shard + 1, MOST_BUSY))


def test_busy_shards_begin_at_the_same_moments(clock: SimpleNamespace) -> None:
    pace = Pace(timedelta(seconds=INTERVAL))
    for shard, now in enumerate((100.01, 100.07, 100.13, 100.16)):
        clock.now = now
        pace.begin(shard)
    moments = [clock.now + pace.rest(shard) for shard in range(4)]
    assert moments == pytest.approx([100.2, 100.2, 100.2, 100.21]), "none later than alone, and none at once again"
    clock.now = 100.21
    for shard in range(4):
        pace.begin(shard)
    assert [clock.now + pace.rest(shard) for shard in range(4)] == pytest.approx([100.4] * 4)


def test_shards_that_rest_slow_down_nobody(clock: SimpleNamespace) -> None:
    pace = Pace(timedelta(seconds=INTERVAL))
    for shard in range(16):
        pace.begin(shard)
    clock.now += BUSY_SECONDS
    pace.begin(3)
    assert pace.rest(3) == pytest.approx(INTERVAL)
    assert pace.rest(4) <= 0


class Shards:
    """A persister of four shards, all of which count as busy, and a gate for each."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        broker = InMemoryBroker(build_topology(shards=SHARDS))
        self.gates = [ScriptedGate(broker.connect("orchestrator"), shard) for shard in range(SHARDS)]
        self.bench = LogBench(self.gates[0], broker.connect("persister"), pool, PersisterSettings(shards=SHARDS))
        self.sent = [0] * SHARDS
        """Packets."""

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Persister]:
        """Run the persister; every shard is open and has begun a transaction."""
        async with self.bench.writing() as persister:
            for gate in self.gates:
                await gate.open()
            await until(lambda: all(one.counts.messages == 1 for one in persister.writers))
            yield persister

    async def send(self) -> None:
        """Log a packet and a session in each shard, all in one turn."""
        for shard, gate in enumerate(self.gates):
            self.sent[shard] += 1
            session = f"session-{shard}"
            await gate.log([packet_entry(session_id=session)], [session_row(session, step=self.sent[shard])])

    def are_written(self, persister: Persister, shards: Sequence[int] = range(SHARDS)) -> Callable[[], bool]:
        """Return the condition that what was sent to these shards is committed."""
        return lambda: all(persister.writers[one].counts.messages == 1 + self.sent[one] for one in shards)

    async def check(self, missing: int = 0) -> None:
        """Each packet is in the log once, each number too, and the trees say the same; `missing` became conflicts."""
        rows = await self.bench.pool.fetch("SELECT shard, seq FROM apc_log.agent_packets")
        assert len(rows) == sum(self.sent) - missing
        assert await self.bench.count("packet_conflicts") == missing
        steps = await self.bench.pool.fetch("SELECT shard, session_id, step FROM apc_log.sessions")
        for shard, sent in enumerate(self.sent):
            assert (shard, f"session-{shard}", sent) in {tuple(row) for row in steps}
            async with self.bench.pool.acquire() as connection:
                report = await verify_shard(connection, shard, load_signer(self.bench.settings).public_key(shard))
            assert not report.findings and report.entries == sent, report


@pytest.fixture
async def shards(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shards]:
    """Shards that stay busy."""
    monkeypatch.setattr(writer, "BUSY_SECONDS", 600.0)
    pool = await open_pool(postgres_url, max_size=SHARDS + 4)
    yield Shards(pool)
    await pool.close()


async def test_busy_shards_share_a_transaction(shards: Shards) -> None:
    async with shards.writing() as persister:

        async def is_shared() -> bool:
            await shards.send()
            await until(shards.are_written(persister))
            return bool(await shards.bench.pool.fetchval(SHARED) == SHARDS)

        await until(is_shared)
        assert sum(one.counts.duplicates for one in persister.writers) == 0
    await shards.check()


async def test_a_shard_that_somebody_has_locked_holds_up_none_of_the_others(shards: Shards) -> None:
    async with shards.writing() as persister, shards.bench.pool.acquire() as other:
        async with other.transaction():
            await other.execute(LOCK)
            for _ in range(3):
                await shards.send()
                await until(shards.are_written(persister, (0, 2, 3)))
            assert not shards.are_written(persister, (1,))()
        await until(shards.are_written(persister))
    await shards.check()


async def test_an_entry_at_fault_is_its_own_shards_alone(shards: Shards) -> None:
    bad = msgspec.structs.replace(packet_entry(session_id="session-2"), task_id="nul\0")
    async with shards.writing() as persister:
        for _ in range(3):
            await shards.send()
        shards.sent[2] += 1
        await shards.gates[2].log([bad], [session_row("session-2", step=shards.sent[2])])
        await until(shards.are_written(persister))
        assert [one.counts.unstored for one in persister.writers] == [0, 0, 1, 0]
        assert persister.is_ready
    await shards.check(missing=1)


@pytest.mark.parametrize("is_committed", [False, True], ids=["before the commit", "after the commit"])
async def test_what_fails_for_all_is_committed_by_each(
    shards: Shards, monkeypatch: pytest.MonkeyPatch, is_committed: bool
) -> None:
    """An answer that was lost too: each shard finds its batches in the log."""
    attempts: list[int] = []

    async def fail(connection: Any, parts: Sequence[Part], *given: Any) -> dict[int, Committed]:
        attempts.append(len(parts))
        if is_committed:
            await commit_together(connection, parts, *given)
        raise LookupError("nobody has foreseen this")

    monkeypatch.setattr("apc_persister.writer.commit_together", fail)
    monkeypatch.setattr(writer, "APART_SECONDS", 0.0)
    async with shards.writing() as persister:

        async def was_tried() -> bool:
            await shards.send()
            await until(shards.are_written(persister))
            return max(attempts, default=0) == SHARDS

        await until(was_tried)
        monkeypatch.setattr(writer, "APART_SECONDS", 600.0)
        duplicates = sum(one.counts.duplicates for one in persister.writers)
        assert (duplicates >= SHARDS) if is_committed else (duplicates == 0)
    await shards.check()


async def test_after_a_failure_each_commits_by_itself_for_a_while(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[int] = []

    async def fail(connection: Any, parts: Sequence[Part], *given: Any) -> dict[int, Committed]:
        attempts.append(len(parts))
        raise LookupError("nobody has foreseen this")

    monkeypatch.setattr("apc_persister.writer.commit_together", fail)
    monkeypatch.setattr(writer, "APART_SECONDS", 600.0)
    async with shards.writing() as persister:
        for _ in range(4):
            await shards.send()
            await until(shards.are_written(persister))
    assert len(attempts) <= 1
    await shards.check()

"""Segments age: archived, recorded, let go of; what must stay does, and the log verifies at each step."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest
from tests.support.log.archived import write_segments

from apc_log.archive import Archive
from apc_log.offline_verifier import PublicKey
from apc_persister.ageing import Ageing, Policy, Step
from apc_persister.follower import Follower
from apc_persister.verification.verify import Report, verify_shard

NOW = Policy(release_after=timedelta(0))


class AgeingLog:
    """A log of two full segments, and its archive in a folder."""

    def __init__(self, connection: asyncpg.Connection, archive: Archive, key: PublicKey) -> None:
        self.connection = connection
        self.archive = archive
        self.key = key

    async def age(self, policy: Policy = NOW) -> list[Step]:
        """Look at every segment once."""
        return [step async for step in Ageing(self.connection, self.archive, policy).run()]

    async def export(self) -> None:
        """Say that the newest checkpoint was exported."""
        await self.connection.execute(
            "INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) "
            "SELECT 0, 'held', next_seq FROM apc_log.shards "
            "ON CONFLICT (shard, target) DO UPDATE SET tree_size = excluded.tree_size"
        )

    async def states(self) -> list[str]:
        """The states of the segments."""
        return [row[0] for row in await self.connection.fetch("SELECT state FROM apc_log.segments ORDER BY first_seq")]

    async def verify(self) -> Report:
        """Verify what the database has."""
        return await verify_shard(self.connection, 0, self.key)

    async def packets(self, last: int = 65536) -> int:
        """Packets up to an entry."""
        count: int = await self.connection.fetchval("SELECT count(*) FROM apc_log.agent_packets WHERE seq <= $1", last)
        return count


@pytest.fixture
async def ageing(postgres_url: str, tmp_path: Path) -> AsyncIterator[AgeingLog]:
    """A log that nothing was archived of yet."""
    name, key, _ = await write_segments(postgres_url)
    pool = await asyncpg.create_pool(postgres_url, min_size=1, max_size=2)
    await Follower(pool).catch_up()
    await pool.close()
    connection = await asyncpg.connect(postgres_url)
    yield AgeingLog(connection, Archive(tmp_path / "archive", name, cache=tmp_path / "cache"), key)
    await connection.close()


@pytest.mark.long
async def test_a_segment_is_archived_recorded_and_let_go_of(ageing: AgeingLog) -> None:
    steps = await ageing.age()
    assert [step.done for step in steps] == ["archived", "waits", "archived", "waits"]
    assert "no exported checkpoint covers its record" in steps[1].detail
    before = await ageing.packets()
    await ageing.connection.execute("UPDATE apc_log.sessions SET open_deliveries = 0, is_terminal = true")
    await ageing.export()

    steps = await ageing.age()

    assert [step.done for step in steps] == ["released", "released"]
    assert await ageing.states() == ["released", "released", "open"]
    assert await ageing.packets() < before
    assert await ageing.connection.fetch("SELECT * FROM apc_guard.faults()") == []
    leftover = "SELECT relname FROM pg_class WHERE relnamespace = 'apc_log'::regnamespace AND relname ~ '_0_1$'"
    assert await ageing.connection.fetch(leftover) == []
    report = await ageing.verify()
    assert (report.findings, report.released) == ([], 2 * 65536)
    assert await ageing.age() == []

"""Segments of a shard in another database: held, archived, let go of, read and verified from home, by commands."""

import asyncio
import json
import os
import re
from pathlib import Path

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log.answers import Answers
from tests.support.log.archived import ReleasedLog, full_log
from tests.support.log.split import AWAY, write_log

from apc_bus.database import open_pool
from apc_log.archive import BLOCK
from apc_log.heads import READING
from apc_log.queries.packets import trace

pytestmark = [pytest.mark.postgres, pytest.mark.long]
HELD = "session-of-run-2"
HOLDS = "SELECT hold_id FROM apc_log.holds WHERE is_in_force AND session_id = $1"
CLAIMS = "SELECT count(*) FROM apc_log.agent_packets WHERE session_id = $1 AND packet_type = 'CLAIM' AND seq <= $2"
EXPORTED = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) SELECT shard, 'held', next_seq FROM apc_log.shards
"""


@pytest.mark.timeout(300)  # 130,000 entries over postgres_fdw, and everything is asked for twice
async def test_segments_of_another_database_age_and_are_read(urls: list[str], tmp_path: Path) -> None:
    home, away = urls
    (tmp_path / "policy.yaml").write_text("release_after: 0.001\n")
    given = {
        "APC_DATABASE_URL": home,
        "APC_DATABASES": json.dumps({AWAY: away}),
        "APC_SHARDS": "2",
        "APC_LOG_KEY": os.environ["APC_LOG_KEY"],
        "APC_ARCHIVE_URL": str(tmp_path / "archive"),
        "APC_ARCHIVE_POLICY": str(tmp_path / "policy.yaml"),
    }

    async def apc(*arguments: str, returns: int = 0) -> str:
        done = await asyncio.to_thread(ApcCommand(tmp_path), *arguments, given=given)
        assert done.returncode == returns, done.stderr
        return done.stdout

    async def archived() -> list[tuple[str, str]]:
        return re.findall(
            r"^shard (\d), entries \d+ to \d+: (\w+)", await apc("log", "archive", "--once"), re.MULTILINE
        )

    await apc("migrate")
    await apc("shard", "place", "1", "--database", AWAY)
    await write_log(home, batches=1, shards=[0], second=0)
    pool = await open_pool(home, max_size=4, server_settings=READING, parts={AWAY: [1]})
    try:
        async with full_log(away, tmp_path, shard=1) as log:
            before = await Answers.of(pool, shard=1)
            for wrong in (("--reason", ""), ("--reason", "x", "--until", "2020-01-01")):
                await apc("log", "hold", "add", "--session", HELD, *wrong, returns=2)
            hold = (await apc("log", "hold", "add", "--session", HELD, "--reason", "a dispute")).strip()
            assert [str(await one.fetchval(HOLDS, HELD)) for one in (pool, log.pool)] == [hold, hold]
            assert await archived() == [("1", "archived"), ("1", "waits")] * 2
            await log.pool.execute(EXPORTED)
            assert await archived() == [("1", "released")] * 2
            await read_again(pool, log, before)
            states = [(one["shard"], one["state"]) for one in json.loads(await apc("log", "segments", "--json"))]
            assert states == [(0, "open"), (1, "released"), (1, "released"), (1, "open")]
            # Sessions by script were never judged; each shard fits its tree, and what stays fits the archive.
            reports = {one["shard"]: one for one in json.loads(await apc("log", "verify", "--json", returns=1))}
            assert [reports[shard]["findings"] for shard in (0, 1)] == [[], []]
            assert reports[1]["released"] == 2 * BLOCK and reports[1]["stayed"] > 100
            await apc("log", "hold", "lift", hold)
            assert [await one.fetchval(HOLDS, HELD) for one in (pool, log.pool)] == [None, None]
    finally:
        await pool.close()


async def read_again(pool: asyncpg.Pool, log: ReleasedLog, before: Answers) -> None:
    """What is held stays; what was let go of is read from the archive, together with what home has."""
    assert await log.pool.fetchval(CLAIMS, HELD, BLOCK) > 100
    assert await log.pool.fetchval(CLAIMS, "session-of-run-0", BLOCK) == 0
    log.attach(pool)
    await before.compare(pool)
    sessions = {one.packet.session_id for one in (await trace(pool, run_id="run-0", limit=100_000)).packets}
    assert sessions == {"session-of-run-0", "second-of-run-0"}

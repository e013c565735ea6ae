"""A shard in another database, by commands alone: placed, written there, read from home, verified where it is."""

import asyncio
import json
import os
import re
from pathlib import Path
from subprocess import CompletedProcess

import asyncpg
import pytest
from tests.support.apc_command import ApcCommand
from tests.support.log.split import AWAY, write_log

pytestmark = [pytest.mark.postgres]
ADD_INDEX = """
SELECT apc_guard.maintain('an index more');
CREATE UNIQUE INDEX one_more ON apc_log.shard_epochs (shard, epoch, holder)
"""


async def test_a_log_of_two_databases_is_read_as_one(urls: list[str], tmp_path: Path) -> None:
    home, away = urls
    alone = {"APC_DATABASE_URL": home, "APC_SHARDS": "2", "APC_LOG_KEY": os.environ["APC_LOG_KEY"]}
    given = alone | {"APC_DATABASES": json.dumps({AWAY: away})}

    async def apc(*arguments: str, given: dict[str, str] = given) -> CompletedProcess[str]:
        return await asyncio.to_thread(ApcCommand(tmp_path), *arguments, given=given)

    async def sessions(given: dict[str, str] = given) -> set[str]:
        done = await apc("session", "list", "--json", given=given)
        assert done.returncode == 0, done.stderr
        return {one["session_id"] for one in json.loads(done.stdout)}

    done = await apc("session", "list")
    assert done.returncode and "are not read together yet: run `apc migrate`" in done.stderr, done
    done = await apc("migrate")
    assert (done.returncode, done.stdout) == (0, "2 databases have the schema\n"), done
    await write_log(home, batches=1, shards=[0])
    first = await sessions()
    assert first == await sessions(alone) and "session-of-run-0" in first

    assert (await apc("shard", "place", "1", "--database", AWAY)).returncode == 0
    await write_log(away, batches=1, shards=[1])
    assert "second-of-run-0" in await sessions() - first, "without another command"
    done = await apc("session", "list", given=alone)
    assert (done.returncode, done.stderr) == (
        2,
        "apc: shard 1 of the log is in database 'east': name it in APC_DATABASES\n",
    )
    done = await apc("packet", "trace", "--run-id", "run-0", "--limit", "1000", "--json")
    traced = set(re.findall(r'"session_id": *"([^"]+)"', done.stdout))
    assert traced == {"session-of-run-0", "second-of-run-0"}, done.stderr
    connection = await asyncpg.connect(away)
    await connection.execute(ADD_INDEX)
    await connection.close()
    found = [one["finding"] for one in json.loads((await apc("doctor", "--json")).stdout)]
    assert "home, east have the shards that home says" in found
    assert [one for one in found if one.startswith("east: added to apc_log.")], [*found]

    async def verified() -> dict[int, list[str]]:
        done = await apc("log", "verify", "--json")
        reports = [one for one in json.loads(done.stdout) if one["shard"] is not None]
        assert sorted(one["shard"] for one in reports if one["size"] > 500) == [0, 1]
        return {one["shard"]: one["findings"] for one in reports}

    assert await verified() == {0: [], 1: []}
    connection = await asyncpg.connect(home)
    await connection.execute("DELETE FROM apc_log.shard_places")  # as a log writer may
    await connection.close()
    assert await verified() == {0: [], 1: []}, "each database knows what it has"


async def test_a_shard_that_no_database_has_is_a_finding(urls: list[str], tmp_path: Path) -> None:
    home, away = urls
    given = {"APC_DATABASE_URL": home, "APC_SHARDS": "2", "APC_LOG_KEY": os.environ["APC_LOG_KEY"]}
    given["APC_DATABASES"] = json.dumps({AWAY: away})
    await asyncio.to_thread(ApcCommand(tmp_path), "migrate", given=given)
    await write_log(home, batches=1)
    connection = await asyncpg.connect(home)
    await connection.execute("SELECT apc_guard.close_shard(1, 'east')")
    await connection.close()
    done = await asyncio.to_thread(ApcCommand(tmp_path), "log", "verify", given=given)
    assert done.returncode == 1
    assert "shards_here: no database of APC_DATABASES has it" in done.stderr

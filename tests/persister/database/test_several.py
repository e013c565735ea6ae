"""Shards in two databases: each takes its own shards and refuses the others."""

import asyncio

import asyncpg
import pytest
from tests.support.log import disable_guards, packet_entry, until
from tests.support.log.two_databases import SHARDS, TwoDatabases, key_of

from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology, log_queue
from apc_log.heads import read_ends
from apc_log.placement import LogDatabases, open_databases
from apc_persister.database.guard import read_guard
from apc_persister.database.migrate import migrate_all
from apc_persister.database.several import name_database, read_name, read_place
from apc_persister.errors import DatabaseMisnamed, MoveImpossible
from apc_persister.service import Persister
from apc_persister.verification.verify import verify_shard

HEAD = "INSERT INTO apc_log.shards (shard, epoch, holder, batch_no, next_seq) VALUES ($1, 0, NULL, 0, 1)"
SEGMENT = "INSERT INTO apc_guard.segments (shard, first_seq, last_seq) VALUES ($1, 1, 65536)"
PLACE = "INSERT INTO apc_log.shard_places (shard, database, moved_at, moved_by) VALUES (1, 'east', now(), '')"
SEEN = "SELECT agent_id FROM apc_log.agent_presence"


async def test_a_new_shard_is_written_to_the_database_that_it_is_placed_in(two: TwoDatabases) -> None:
    assert await two.place(1, "east") == "home"
    assert await two.place(1, "east") == "east", "again, after a kill"
    gates = [two.gate(shard) for shard in range(SHARDS)]
    async with two.writing() as persister:
        for gate in gates:
            await gate.open()
            await gate.log([packet_entry(session_id=f"of-{gate.shard}")])
            await gate.hear(f"agent-{gate.shard}")
        await until(two.has_entries(two.home, 0, 1))
        await until(two.has_entries(two.east, 1, 1))
        await until(lambda: persister.is_ready)
    assert (await read_ends(two.home), await read_ends(two.east)) == ({0: 1}, {1: 1})
    async with two.writing():  # restarted: a takeover, and what comes then
        await gates[1].open()
        await gates[1].log([packet_entry(session_id="of-1")])
        await until(two.has_entries(two.east, 1, 2))
    async with two.east.acquire() as connection:
        report = await verify_shard(connection, 1, key_of(1))
        assert (report.findings, report.size) == ([], 2)
        assert (await read_guard(connection)).holes == ()
    assert {row[0] for row in await two.home.fetch(SEEN)} == {"agent-0", "agent-1"}, "home knows who is here"
    with pytest.raises(MoveImpossible, match="shard 1 has entries in east: `apc shard move 1 --database home`"):
        await two.place(1, "home")


async def test_each_database_refuses_the_shards_of_others(two: TwoDatabases) -> None:
    await two.place(1, "east")
    for pool, shard in ((two.home, 1), (two.east, 0), (two.east, 3)):
        for statement in (HEAD, SEGMENT):
            with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match=f"shard {shard} is not in database"):
                await pool.execute(statement, shard)
    await disable_guards(two.east)
    await two.east.execute("ALTER TABLE apc_guard.segments DISABLE TRIGGER ALL")
    await two.east.execute(HEAD, 3)
    await two.east.execute(SEGMENT, 3)
    async with two.east.acquire() as connection:
        holes = (await read_guard(connection)).holes
    assert any("apc_log.shards lacks trigger fence_shard" in hole for hole in holes), holes


async def test_a_persister_that_knows_no_other_database_leaves_the_shard_alone(two: TwoDatabases) -> None:
    await two.place(1, "east")
    gate = two.gate(1)
    await gate.open()
    await gate.log([packet_entry()])
    alone = TwoDatabases(two.broker, two.home, LogDatabases(two.home))
    async with alone.writing() as persister:
        await until(lambda: persister.writers[1].counts.failures > 0)
        assert not persister.is_ready
    assert await read_ends(two.home) == {}
    async with two.writing():
        await until(two.has_entries(two.east, 1, 1))


async def test_a_database_that_is_away_keeps_no_other_shard(pool: asyncpg.Pool) -> None:
    broker = InMemoryBroker(build_topology(SHARDS))
    nowhere = {"east": "postgresql://postgres@127.0.0.1:1/nowhere"}
    async with open_databases(pool, nowhere, max_size=6) as databases:
        two = TwoDatabases(broker, pool, databases)
        await pool.execute(PLACE)
        await pool.execute("SELECT apc_guard.place_shard(1, false)")
        for gate in [two.gate(shard) for shard in range(SHARDS)]:
            await gate.open()
            await gate.log([packet_entry(session_id=f"of-{gate.shard}")])
        async with two.writing() as persister:
            await until(two.has_entries(pool, 0, 1))
            await until(lambda: any("the database is away" in problem for problem in persister.problems))
        assert (await broker.connect("test").depth(log_queue(1))).messages == 2, "they wait for it"


async def test_what_cannot_be_placed(two: TwoDatabases) -> None:
    with pytest.raises(MoveImpossible, match="shard 0 stays at home"):
        await two.place(0, "east")
    gate = two.gate(1)
    await gate.open()
    async with two.writing():
        await until(two.has_entries(two.home, 1, 0))
    with pytest.raises(MoveImpossible, match="shard 1 has entries in home: `apc shard move 1 --database east`"):
        await two.place(1, "east")
    async with two.home.acquire() as connection:
        assert await read_place(connection, 1) == ("home", None)


async def test_databases_know_their_names(postgres_url: str, east_url: str, two: TwoDatabases) -> None:
    await migrate_all(postgres_url, {"east": east_url})
    with pytest.raises(DatabaseMisnamed, match="'west' leads to the database 'east' of a log"):
        await migrate_all(postgres_url, {"west": east_url})
    with pytest.raises(DatabaseMisnamed, match="APC_DATABASE_URL leads to the database 'east' of a log"):
        await migrate_all(east_url, {})
    gate = two.gate(0)
    await gate.open()
    async with two.writing():
        await until(two.has_entries(two.home, 0, 0))
    async with two.home.acquire() as connection:
        with pytest.raises(DatabaseMisnamed, match="'west' leads to the home of a log that has shards"):
            await name_database(connection, "west")
        assert await read_name(connection) == "home"
    settings = PersisterSettings(shards=SHARDS, serve_shards=None)
    persister = Persister(settings, two.broker.connect("persister"), two.east)
    with pytest.raises(DatabaseMisnamed):
        await persister.run(asyncio.Event())

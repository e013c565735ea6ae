"""A filled shard moves to another database, and everything that stands beside its log with it."""

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest
from tests.persister.test_run_sums import transfer
from tests.support.log import hop, lift_guard, packet_entry, session_row, until
from tests.support.log.archived import SEGMENTS, write_segments
from tests.support.log.two_databases import SHARDS, TwoDatabases, key_of

from apc_log.archive import BLOCK, Archive
from apc_log.heads import read_ends
from apc_persister.ageing import Ageing, Policy
from apc_persister.database.guard import read_guard
from apc_persister.database.several import Move, read_place, shards_away
from apc_persister.errors import MoveImpossible
from apc_persister.evidence.rows import find_strays
from apc_persister.follower import Follower
from apc_persister.rebuild import rebuild_projections
from apc_persister.verification.derived import compare_derived
from apc_persister.verification.findings import LogFinding
from apc_persister.verification.verify import verify_shard

PACKETS = "SELECT packet_id, epoch, batch_no FROM apc_log.agent_packets WHERE shard = 1 ORDER BY seq"
EVENTS = "SELECT kind, detail FROM apc_log.log_events WHERE shard = 1 ORDER BY seq"
ROWS = "SELECT (SELECT count(*) FROM apc_log.{0} WHERE shard = 1)"
TABLES = ("packet_events", "sessions", "packet_ids", "log_checkpoints", "shard_epochs", "packet_search")
SUMS = "SELECT task_id, tasks FROM apc_log.protocol_sums WHERE tasks > 0 ORDER BY task_id"
STATES = "SELECT first_seq, last_seq, state, record_seq, root FROM apc_log.segments WHERE shard = 1 ORDER BY first_seq"
EXPORTED = """
INSERT INTO apc_log.checkpoint_exports (shard, target, tree_size) SELECT 1, 'held', next_seq FROM apc_log.shards
ON CONFLICT (shard, target) DO UPDATE SET tree_size = excluded.tree_size
"""
HOLD = "SELECT apc_guard.hold($1, NULL, NULL, 'a dispute', NULL)"
HELD = "SELECT hold_id FROM apc_log.holds WHERE is_in_force"
CONFLICTS = "SELECT count(*) FROM apc_log.packet_conflicts"


async def move(two: TwoDatabases, target: str = "east", shard: int = 1, patience: float = 30) -> str:
    """Move a shard as `apc shard move --database` does, without waiting for anybody to leave."""

    async def drained() -> None:
        """Nobody serves it."""

    async with two.home.acquire() as home, two.east.acquire() as east:
        return await Move({"home": home, "east": east}, shard, target, (key_of(shard),), patience).run(drained)


async def sum_runs(pool: asyncpg.Pool) -> None:
    await pool.execute("SELECT apc_log.sum_runs(now() + interval '1 hour', 100)")


async def findings(pool: asyncpg.Pool) -> list[LogFinding]:
    """Return what `apc log verify` finds in a database."""
    found: list[LogFinding] = []
    async with pool.acquire() as connection:
        for shard in await read_ends(pool):
            found += (await verify_shard(connection, shard, key_of(shard))).findings
        return [*found, *await find_strays(connection), *await compare_derived(connection)]


async def test_a_filled_shard_moves_and_goes_on_behind_its_last_entry(two: TwoDatabases) -> None:
    gates, sent = [two.gate(shard) for shard in range(SHARDS)], list[UUID]()
    for gate in gates:
        await gate.open()

    async def log(count: int) -> None:
        for gate in gates:
            packets = [packet_entry(session_id=f"of-{gate.shard}") for _ in range(count)]
            hops = [hop(packet, ["delivery_ack"], "ROUTED", "DELIVERED", "receiver-1") for packet in packets]
            await gate.log([*packets, *hops], [session_row(session_id=f"of-{gate.shard}")])
            sent.extend(packet.packet_id for packet in packets if gate.shard == 1)

    async with two.writing():
        await log(300)
        await until(two.has_entries(two.home, 1, 600))
        held = await two.home.fetchval(HOLD, "of-1")
        await until(two.has_entries(two.home, 1, 601))
        assert await move(two) == "home"
        assert [row["hold_id"] for row in await two.east.fetch(HELD)] == [held], "what is held stays held there"
        await log(3)  # the gate of before still holds it: nothing is fenced
        await until(two.has_entries(two.east, 1, 608))
        await gates[1].open()
        await log(2)
        await until(two.has_entries(two.east, 1, 612))
        assert await move(two) == "east", "again"
    rows = await two.east.fetch(PACKETS)
    assert [row["packet_id"] for row in rows] == sent, "none is lost or doubled, and they are in order"
    assert [row["batch_no"] for row in rows] == [1] * 300 + [2] * 3 + [1] * 2
    assert [row["kind"] for row in await two.east.fetch(EVENTS)] == ["hold", "moved"]
    for kind in TABLES:
        before, now = [await pool.fetchval(ROWS.format(kind)) for pool in (two.home, two.east)]
        assert before <= now, kind
    assert await two.home.fetchval(CONFLICTS) + await two.east.fetchval(CONFLICTS) == 0
    assert await findings(two.home) == await findings(two.east) == []
    async with two.home.acquire() as home, two.east.acquire() as east:
        assert await read_place(home, 1) == ("east", None)
        assert await shards_away({"home": home, "east": east}) == {1: "east"}
    assert (await read_ends(two.home))[1] == 602, "the log of before ends with the entry that says where it goes on"
    with pytest.raises(asyncpg.ObjectNotInPrerequisiteStateError, match="shard 1 is not in database home: it is away"):
        await two.home.execute("UPDATE apc_log.shards SET next_seq = next_seq + 1 WHERE shard = 1")
    with pytest.raises(MoveImpossible, match="shard 1 was in home before"):
        await move(two, "home")
    await two.home.execute("SELECT apc_guard.maintain('a maintenance passes the shards by that are away')")
    assert (await read_ends(two.home))[1] == 602


async def test_each_use_of_a_protocol_is_summed_in_one_database(two: TwoDatabases) -> None:
    """Runs of the shard, and one that another shard has a part of, were summed before it moved."""
    gates = [two.gate(shard) for shard in range(SHARDS)]
    async with two.writing():
        for gate in gates:
            await gate.open()
            await gate.log([*transfer("run-of-both", f"task-{gate.shard}"), *transfer(f"run-{gate.shard}", "task-2")])
            await until(two.has_entries(two.home, gate.shard, 4))
        await sum_runs(two.home)
        assert [tuple(row) for row in await two.home.fetch(SUMS)] == [("task-0", 1), ("task-1", 1), ("task-2", 2)]
        await move(two)
        await gates[1].log(transfer("run-1", "task-3"))
        await until(two.has_entries(two.east, 1, 7))
    for pool in (two.home, two.east):
        await sum_runs(pool)
        assert await findings(pool) == []
    here, there = [("task-0", 1), ("task-2", 1)], [("task-1", 1), ("task-2", 1), ("task-3", 1)]
    for pool, expected in ((two.home, here), (two.east, there)):
        assert [tuple(row) for row in await pool.fetch(SUMS)] == expected
        async with pool.acquire() as connection:
            assert (await rebuild_projections(connection)).shards == 1, "without the one that has left"
        await Follower(pool).catch_up()
        await sum_runs(pool)
        assert [tuple(row) for row in await pool.fetch(SUMS)] == expected
        assert await findings(pool) == []


async def test_what_cannot_move(two: TwoDatabases) -> None:
    with pytest.raises(MoveImpossible, match="shard 1 has no entries: `apc shard place`"):
        await move(two)
    with pytest.raises(MoveImpossible, match="shard 0 stays at home"):
        await move(two, shard=0)
    gate = two.gate(1)
    await gate.open()
    async with two.writing():
        await gate.log([packet_entry()])
        await until(two.has_entries(two.home, 1, 1))
    with pytest.raises(MoveImpossible, match="lacks the last entries: start a log writer"):
        await move(two, patience=0)
    with pytest.raises(MoveImpossible, match="shard 1 is on its way to east"):
        await move(two, "home")
    await gate.log([packet_entry()])
    async with two.writing():
        await move(two)
        await until(two.has_entries(two.east, 1, 3))


async def test_a_hold_whose_id_names_something_else_there_is_not_left_behind(two: TwoDatabases) -> None:
    gate = two.gate(1)
    await gate.open()
    async with two.writing():
        await gate.log([packet_entry()])
        await until(two.has_entries(two.home, 1, 1))
        held = await two.home.fetchval(HOLD, "of-1")
        await two.east.execute("SELECT apc_guard.hold('another', NULL, NULL, 'hides it', NULL, $1)", held)
        with pytest.raises(MoveImpossible, match=f"hold {held} names something else in database east"):
            await move(two)
        async with two.home.acquire() as home:
            assert await read_place(home, 1) == ("home", None)
        await gate.log([packet_entry()])  # it is served as before
        await until(two.has_entries(two.home, 1, 3))


async def test_a_copy_that_is_not_what_was_copied_is_not_opened(two: TwoDatabases, postgres_url: str) -> None:
    gate = two.gate(1)
    await gate.open()
    async with two.writing():
        await gate.log([packet_entry(text="as it was") for _ in range(3)])
        await until(two.has_entries(two.home, 1, 3))
        with pytest.raises(MoveImpossible, match="lacks the last entries"):
            await move(two, patience=0)
        superuser = await asyncpg.connect(postgres_url)
        await lift_guard(superuser)
        await superuser.close()
        for table in ("agent_packets", "agent_packets_1_1"):
            await two.home.execute(f"ALTER TABLE apc_log.{table} DISABLE TRIGGER ALL")
        await two.home.execute("UPDATE apc_log.agent_packets SET task_id = 'another' WHERE shard = 1 AND seq = 2")
        with pytest.raises(MoveImpossible, match="the copy of shard 1 in east is not the log that home has: entry 2"):
            await move(two)
        await gate.log([packet_entry()])
    assert (await read_ends(two.east), (await read_ends(two.home))[1]) == ({1: 4}, 4), "it is closed in both"


@pytest.mark.long
async def test_a_shard_moves_with_segments_that_were_let_go_of(
    two: TwoDatabases, postgres_url: str, tmp_path: Path
) -> None:
    """The archive has their entries: the database gets what stays of them, and the tree above their leaves."""
    log_name, key, _ = await write_segments(postgres_url, 1)
    archive = Archive(tmp_path / "archive", log_name, cache=tmp_path / "cache")
    await Follower(two.home).catch_up()
    connection = await asyncpg.connect(postgres_url)
    for _ in range(2):
        await connection.execute(EXPORTED)
        done = [step.done async for step in Ageing(connection, archive, Policy(release_after=timedelta(0))).run()]
    assert "released" in done, done
    states = await connection.fetch(STATES)
    await connection.close()
    async with two.writing():
        assert await move(two) == "home"
        gate = two.gate(1)
        gate.epoch = 1
        await gate.open()
        await gate.log([packet_entry()])
        await until(two.has_entries(two.east, 1, 2 + (await read_ends(two.home))[1] - 1))
    assert (await two.east.fetch(STATES))[: len(states)] == states, "and then those that were opened since"
    async with two.east.acquire() as east:
        report = await verify_shard(east, 1, key)
        assert (report.findings, report.released) == ([], SEGMENTS * BLOCK)
        assert (await read_guard(east)).holes == ()

"""The range of the log that a session stands in: every entry that names it, whichever release wrote them."""

import random

import asyncpg
import pytest
from tests.support.log import LogBench, coordination, lifecycle, packet_entry, session_row

from apc_log.batch import Entry
from apc_log.heads import LogRange, read_range
from apc_persister.follower import Follower, bound_sessions
from apc_persister.rebuild import rebuild_projections
from apc_persister.verification.sessions import compare_sessions

NAMED = """
SELECT session_id, min(entry.shard) AS shard, min(seq) AS first, max(seq) AS last, count(DISTINCT entry.shard) AS shards
FROM (
    SELECT session_id, shard, seq FROM apc_log.agent_packets
    UNION ALL SELECT session_id, shard, seq FROM apc_log.packet_events
    UNION ALL SELECT session_id, shard, seq FROM apc_log.packet_lineage
    UNION ALL SELECT session_id, shard, seq FROM apc_log.coordination_events
    UNION ALL SELECT session_id, shard, seq FROM apc_log.packet_conflicts
) AS entry JOIN apc_log.sessions USING (session_id) GROUP BY session_id
"""
AS_BEFORE = (
    "UPDATE apc_log.shards SET bounded_seq = 0",
    "UPDATE apc_log.sessions SET first_seq = NULL, last_seq = NULL",
)


async def check_ranges(pool: asyncpg.Pool) -> int:
    """Each range is exactly that of the entries; return how many there are."""
    rows = await pool.fetch(NAMED)
    for row in rows:
        found = await read_range(pool, [row["session_id"]])
        wanted = LogRange(row["shard"], row["first"], row["last"]) if row["shards"] == 1 else None
        assert found == wanted, row["session_id"]
    return len(rows)


async def write_by_chance(bench: LogBench, seed: int, batches: int = 12) -> None:
    """Packets of five sessions, admitted and refused, in transactions of any size; a session begins when it likes."""
    chance = random.Random(seed)
    steps: dict[str, int] = {}
    for _ in range(batches):
        name = f"s-{chance.randrange(5)}"
        if name not in steps and chance.random() < 0.5:
            entries: list[Entry] = [packet_entry(session_id=name, refusal_code="NOT_FOUND")]
            await bench.gate.log(entries)
        elif name in steps and chance.random() < 0.3:
            await bench.gate.log([packet_entry(session_id=name, refusal_code="SESSION_CLOSED")])
        else:
            steps[name] = steps.get(name, 0) + 1
            packet = packet_entry(session_id=name)
            moved = coordination(packet, steps[name], "research_briefs_dispatched", "SESSION_OPEN", "DISCOVERY")
            await bench.gate.log([packet, *lifecycle(packet), moved], [session_row(name, step=steps[name])])
        if chance.random() < 0.4:
            await bench.write()
    await bench.write()


@pytest.mark.parametrize("seed", range(3))
async def test_a_range_is_that_of_the_entries(bench: LogBench, seed: int) -> None:
    await bench.gate.open()
    await write_by_chance(bench, seed)
    await Follower(bench.pool).catch_up()  # the entries of the migration
    assert await bench.pool.fetchval("SELECT count(*) FROM apc_log.shards WHERE bounded_seq < next_seq - 1") == 0
    assert await check_ranges(bench.pool) >= 2


@pytest.mark.parametrize("piece", [1, 7, 5_000])
async def test_the_log_of_an_older_release_is_taken_in(bench: LogBench, piece: int) -> None:
    """No range is told before all of it is taken in, and one that was begun by an older writer is whole then."""
    await bench.gate.open()
    await write_by_chance(bench, 5)
    for statement in AS_BEFORE:
        await bench.pool.execute(statement)
    async with bench.pool.acquire() as connection:
        while await bound_sessions(connection, piece):
            assert await read_range(connection, ["s-1"]) is None
    assert await check_ranges(bench.pool) >= 2


async def test_a_writer_of_an_older_release_beside(bench: LogBench) -> None:
    """It moves the head alone, and leaves the columns of the sessions as they are."""
    await bench.gate.open()
    await write_by_chance(bench, 3)
    await Follower(bench.pool).catch_up()
    seen = await bench.pool.fetch("SELECT session_id, first_seq, last_seq FROM apc_log.sessions")
    bounded = await bench.pool.fetchval("SELECT bounded_seq FROM apc_log.shards")
    late = packet_entry(session_id=seen[0]["session_id"], refusal_code="SESSION_CLOSED")
    new = packet_entry(session_id="s-new")
    await bench.gate.log([late, new, *lifecycle(new)], [session_row("s-new")])
    await bench.write()
    async with bench.pool.acquire() as connection, connection.transaction():
        await connection.execute("UPDATE apc_log.shards SET bounded_seq = $1", bounded)
        await connection.execute(
            "UPDATE apc_log.sessions SET first_seq = NULL, last_seq = NULL WHERE session_id = 's-new'"
        )
        for row in seen:
            await connection.execute(
                "UPDATE apc_log.sessions SET first_seq = $2, last_seq = $3 WHERE session_id = $1", *row.values()
            )
    assert await read_range(bench.pool, [seen[0]["session_id"]]) is None
    newer = packet_entry(session_id="s-new")
    await bench.gate.log([newer], [session_row("s-new", step=2)])
    await bench.write()
    await Follower(bench.pool).catch_up()
    assert await check_ranges(bench.pool) > len(seen)


async def test_a_session_of_two_shards_has_no_range(bench: LogBench) -> None:
    await bench.gate.open()
    packet = packet_entry(session_id="s-1")
    await bench.gate.log([packet], [session_row("s-1")])
    await bench.write()
    await Follower(bench.pool).catch_up()
    assert await read_range(bench.pool, ["s-1"]) is not None
    await bench.pool.execute("UPDATE apc_log.sessions SET shard = 1")  # as where the entries came to another shard
    await bench.gate.log([packet_entry(session_id="s-1", refusal_code="NOT_FOUND")])
    await bench.write()
    assert await read_range(bench.pool, ["s-1"]) is None
    assert await bench.pool.fetchval("SELECT first_seq FROM apc_log.sessions") == 0


async def test_a_rebuild_mends_a_range(bench: LogBench, postgres_url: str) -> None:
    await bench.gate.open()
    packet = packet_entry(session_id="s-1")
    await bench.gate.log([packet, *lifecycle(packet)], [session_row("s-1")])
    await bench.write()
    await Follower(bench.pool).catch_up()
    connection = await asyncpg.connect(postgres_url)
    left_out = "the range of session 's-1' is not that of its entries"
    assert left_out not in [one.message for one in (await compare_sessions(connection, [])).findings]
    await bench.pool.execute("UPDATE apc_log.sessions SET first_seq = 4, last_seq = 4")
    assert left_out in [one.message for one in (await compare_sessions(connection, [])).findings]
    await connection.execute("SET SESSION AUTHORIZATION apc_owner")
    await rebuild_projections(connection)
    await connection.close()
    assert await read_range(bench.pool, ["s-1"]) is None
    await Follower(bench.pool).catch_up()
    await check_ranges(bench.pool)


async def test_a_name_goes_when_its_session_begins(bench: LogBench) -> None:
    """Its range has what was known of it; a name that belongs to no session stays, and so does one that says more."""
    names = "SELECT session_id FROM apc_log.unopened_sessions ORDER BY 1"
    await bench.gate.open()
    for name in ("s-1", "s-2"):
        await bench.gate.log([packet_entry(session_id=name, refusal_code="NOT_FOUND")])
        await bench.write()
    assert [row[0] for row in await bench.pool.fetch(names)] == ["s-1", "s-2"]
    await bench.gate.log([packet_entry(session_id="s-1")], [session_row("s-1")])
    await bench.write()
    assert [row[0] for row in await bench.pool.fetch(names)] == ["s-2"]
    assert await check_ranges(bench.pool) == 1

    await bench.pool.execute("INSERT INTO apc_log.unopened_sessions VALUES ('s-1', 1, 7, 7)")
    await bench.pool.execute("SELECT apc_guard.forget_begun(ARRAY['s-1', 's-2'])")
    assert [row[0] for row in await bench.pool.fetch(names)] == ["s-1", "s-2"], "entries of another shard"

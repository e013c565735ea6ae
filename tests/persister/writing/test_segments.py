"""Segments of the log: room is made in time, and what an earlier one has is found in a later one."""

from collections.abc import AsyncIterator

import asyncpg
import pytest
from tests.support.log import LogBench, coordination, divide, hop, lifecycle, packet_entry, session_row

from apc_persister.follower import AHEAD, YOUNG, open_ahead


@pytest.fixture
async def superuser(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A superuser's connection to the fresh database."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


SEGMENTS = "SELECT first_seq, last_seq FROM apc_log.segments WHERE shard = 0 ORDER BY first_seq"


async def fill_up(bench: LogBench, last: int) -> None:
    """Log conflicts of no session until the shard has at least so many entries."""
    while await bench.pool.fetchval("SELECT coalesce(max(next_seq), 1) - 1 FROM apc_log.shards") < last:
        await bench.gate.log([packet_entry(session_id="other", refusal_code="NOT_FOUND") for _ in range(64)])
        await bench.write()


async def test_what_an_earlier_segment_has_is_a_conflict(bench: LogBench, superuser: asyncpg.Connection) -> None:
    await divide(superuser)
    await bench.gate.open()
    packet = packet_entry(session_id="s-1")
    moved = coordination(packet, 1, "research_briefs_dispatched", "SESSION_OPEN", "DISCOVERY")
    hops = lifecycle(packet)
    await bench.gate.log([packet, *hops, moved], [session_row("s-1")])
    await bench.write()
    await fill_up(bench, 300)
    known = await bench.pool.fetchval("SELECT max(seq) FROM apc_log.packet_conflicts")

    later = packet_entry(session_id="s-1")
    fresh = hop(packet, ["effect"], "", "", "a", 7, b"{}")
    await bench.gate.log([later, packet, hops[0], moved, fresh], [session_row("s-1", step=2)])
    await bench.write()

    rows = await bench.pool.fetch(
        "SELECT kind FROM apc_log.packet_conflicts WHERE seq > coalesce($1, 0) ORDER BY seq", known
    )
    assert [row["kind"] for row in rows] == ["duplicate_id", "duplicate_event", "duplicate_event"]
    for table, count in (("agent_packets", 1), ("packet_events", len(hops)), ("coordination_events", 1)):
        of_first = f"SELECT count(*) FROM apc_log.{table} WHERE session_id = 's-1' AND seq <= 256"
        assert await bench.pool.fetchval(of_first) == count
    assert await bench.pool.fetchval("SELECT count(*) FROM apc_log.packet_events WHERE attempt = 7") == 1


async def test_an_id_of_a_session_that_had_not_begun(bench: LogBench, superuser: asyncpg.Connection) -> None:
    """A packet that was refused in an earlier segment named the session: its id is known when the session begins."""
    await divide(superuser)
    await bench.gate.open()
    early = packet_entry(session_id="s-late", refusal_code="NOT_FOUND")
    await bench.gate.log([early])
    await bench.write()
    await fill_up(bench, 300)
    again = packet_entry(session_id="s-late", packet_id=early.packet_id)
    await bench.gate.log([again], [session_row("s-late")])
    await bench.write()
    assert await bench.pool.fetchval("SELECT count(*) FROM apc_log.packet_conflicts WHERE kind = 'duplicate_id'") == 1
    assert await bench.pool.fetchval("SELECT first_seq FROM apc_log.sessions WHERE session_id = 's-late'") == 1


async def test_the_writer_makes_room_where_nobody_did(bench: LogBench, superuser: asyncpg.Connection) -> None:
    """A log that ends, a shard that begins: no entry waits for the follower."""
    await divide(superuser, segments=1)
    await bench.gate.open()
    await fill_up(bench, 300)
    assert await bench.pool.fetchval("SELECT count(*) FROM apc_log.agent_packets") == len(await bench.numbers())
    segments = [tuple(row) for row in await bench.pool.fetch(SEGMENTS)]
    assert segments[0] == (1, 256) and segments[1][0] == 257


async def test_without_a_segment_an_entry_has_no_place(superuser: asyncpg.Connection) -> None:
    """Why room is made: what the test above would meet."""
    await divide(superuser, segments=1)
    with pytest.raises(asyncpg.CheckViolationError, match="no partition"):
        await superuser.execute("INSERT INTO apc_log.packet_ids VALUES ('s', gen_random_uuid(), '\\x', '\\x', 0, 257)")


async def test_segments_are_open_ahead_of_a_log_that_grows(bench: LogBench, superuser: asyncpg.Connection) -> None:
    await bench.gate.open()
    await bench.gate.log([packet_entry()], [session_row()])
    await bench.write()
    await open_ahead(superuser, 1 << 22)
    assert len(await bench.pool.fetch(SEGMENTS)) == 1  # a young log has one
    await superuser.execute("UPDATE apc_log.shards SET next_seq = $1", YOUNG + 1)
    for _ in range(2):  # the second time there is nothing to do
        await open_ahead(superuser, 1 << 22)
        assert len(await bench.pool.fetch(SEGMENTS)) == 1 + AHEAD
    assert await superuser.fetch("SELECT * FROM apc_guard.faults()") == []


async def test_a_segment_takes_what_comes_in_three_hours(bench: LogBench, superuser: asyncpg.Connection) -> None:
    """Sizes double with the rate, begin where a subtree of theirs does, and stay within the bound."""
    await bench.gate.open()
    await bench.gate.log([packet_entry()], [session_row()])
    await bench.write()
    # 2^16 entries in the minute before the present: six million in 10,000 seconds.
    await superuser.execute("UPDATE apc_log.shards SET next_seq = 70000")
    await superuser.execute(
        "INSERT INTO apc_log.log_checkpoints (shard, tree_size, root_hash, note, recorded_at) "
        "VALUES (0, 5000, sha256(''), '', now() - interval '1 minute')"
    )
    await superuser.fetchval("SELECT apc_guard.open_segments(0, 8, 1 << 20)")
    segments = await bench.pool.fetch(SEGMENTS)
    sizes = [row["last_seq"] - row["first_seq"] + 1 for row in segments]
    assert sizes[:1] == [65536] and max(sizes) == 1 << 20 and sizes == sorted(sizes)
    assert all((row["first_seq"] - 1) % size == 0 for row, size in zip(segments, sizes, strict=True))
    ends = [0, *(row["last_seq"] for row in segments)]
    assert [row["first_seq"] - 1 for row in segments] == ends[:-1]

"""The projections that are filled after commit: from their places on, each entry once, by one process at a time."""

import random
import re
import string
from contextlib import suppress
from hashlib import sha256
from typing import Any, cast

import asyncpg
import pytest
from msgspec.structs import replace
from tests.support.log import LogBench, ScriptedGate, hop, lift_guard, packet_entry
from tests.support.waiting import until

from apc_bus.errors import StatementTooSlow
from apc_bus.in_memory import InMemoryBroker
from apc_bus.settings import PersisterSettings
from apc_bus.topology import build_topology
from apc_log.batch import Entry
from apc_persister import follower
from apc_persister.follower import PROJECTIONS, Follower, Projection, empty_projections, fill

FOUND = "SELECT seq FROM apc_log.packet_search WHERE words @@ $1::tsquery ORDER BY seq"
PLACES = "SELECT projection, seq FROM apc_log.followed ORDER BY projection"
ROWS = "SELECT * FROM apc_log.packet_search ORDER BY shard, seq"
CARDS = "SELECT * FROM apc_log.run_cards ORDER BY run_id"
OTHER_WORDS = """
SELECT text FROM unnest($1::text[]) AS text
WHERE apc_log.words_of(text) <> strip(to_tsvector('simple', apc_log.divided(text)))
"""
SEARCH = PROJECTIONS[0]


async def write(bench: LogBench, *entries: Entry) -> None:
    await bench.gate.log([*entries])
    await bench.write()


async def found(bench: LogBench, query: str) -> list[int]:
    return [row["seq"] for row in await bench.pool.fetch(FOUND, query)]


async def test_words_names_and_ends_are_found(bench: LogBench) -> None:
    await bench.gate.open()
    content = {"content": {"note": "Refund/4711 of <b>Zürich</b>", "euros": 80.5}, "schema": "refund/1"}
    packet = packet_entry(payload=content, recipients=["clerk"])
    await write(bench, packet)
    for query in ("refund & 4711", "zürich", "80 & 5", "sender", "'agent=clerk'", "'schema=refund/1'", "'run=run-1'"):
        assert await found(bench, query) == [1], query
    end = str(packet.packet_id)[-7:]
    assert await found(bench, f"'end={end[::-1]}':*") == [1]
    assert await found(bench, "note | euros") == [], "names of fields are no words of a content"


@pytest.mark.parametrize(
    "text",
    ["x" * 50_000, "a\x00b nul", "🙂 " * 30_000, "é" * 1_500, "<script>nul</script>", "' & ! \\ :* nul", "\\u0000 nul"],
)
async def test_hostile_texts_are_taken(bench: LogBench, text: str) -> None:
    await bench.gate.open()
    await write(bench, packet_entry(text=text), packet_entry(text="behind"))
    assert await found(bench, "behind") == [2]
    assert await found(bench, "nul") == ([1] if "nul" in text else [])
    assert await bench.pool.fetchval("SELECT bool_and(is_read) FROM apc_log.packet_search")


@pytest.mark.parametrize("seed", range(3))
async def test_short_texts_have_the_words_that_the_parser_finds(bench: LogBench, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [*string.printable, *"1e5 12E 0x1f -3.5 http://a.de a1 &amp; é \u2019 😀 \x01 \u2028".split(" ")]
    texts = ["".join(chance.choices(pieces, k=chance.randrange(60))) for _ in range(4_000)]
    texts += ["", "1e5x 2E7y", "W" * 2_046, "W" * 2_047, "w x " * 600]
    assert await bench.pool.fetch(OTHER_WORDS, texts) == []


async def test_bytes_that_are_no_json_are_counted_and_found_by_name(bench: LogBench) -> None:
    await bench.gate.open()
    body = b"\xff no json"
    await write(bench, replace(packet_entry(), body=body, packet_hash=sha256(body).digest()))
    assert await bench.pool.fetchval("SELECT is_read FROM apc_log.packet_search") is False
    assert await found(bench, "'agent=sender-1'") == [1]


async def test_a_ruling_gives_a_held_packet_its_code(bench: LogBench) -> None:
    await bench.gate.open()
    packet = replace(packet_entry(), verdict="held")
    await write(bench, packet)
    assert await found(bench, "'code=LATE'") == []
    ruling = hop(packet, ["policy_fail"], "SCHEMA_VALIDATED", "REJECTED", metadata=b'{"refusal": {"code": "LATE"}}')
    await write(bench, ruling)
    assert await found(bench, "'code=LATE'") == [1]


async def test_each_entry_is_taken_once_wherever_it_was_cut(bench: LogBench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.gate.open()
    await write(bench, *(packet_entry(text=f"word{number}") for number in range(7)))
    whole = await bench.pool.fetch(ROWS)
    assert len(whole) == 7
    async with bench.pool.acquire() as connection, connection.transaction():
        await empty_projections(connection)
    monkeypatch.setattr(follower, "PIECE", 2)
    async with bench.pool.acquire() as connection:
        undone = connection.transaction()
        await undone.start()
        assert await fill(connection, SEARCH, {0: 7})
        await undone.rollback()  # as when the process ends before COMMIT
    assert await bench.pool.fetch(ROWS) == []
    await Follower(bench.pool).catch_up()
    assert await bench.pool.fetch(ROWS) == whole
    assert {row["seq"] for row in await bench.pool.fetch(PLACES)} == {7}


async def test_a_place_set_back_changes_nothing(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, packet_entry(), packet_entry(text="two"))
    whole = await bench.pool.fetch(ROWS)
    await bench.pool.execute("UPDATE apc_log.followed SET seq = 0")
    await Follower(bench.pool).catch_up()
    assert await bench.pool.fetch(ROWS) == whole


async def test_one_process_at_a_time_fills_a_projection(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, packet_entry())
    await bench.pool.execute("UPDATE apc_log.followed SET seq = 0")
    async with bench.pool.acquire() as one, one.transaction(), bench.pool.acquire() as other, other.transaction():
        assert await fill(one, SEARCH, {0: 1})
        assert not await fill(other, SEARCH, {0: 1})


async def test_a_piece_that_is_too_slow_is_taken_in_smaller_ones(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.gate.open()
    await write(bench, *(packet_entry(text=f"word{number}") for number in range(9)))
    async with bench.pool.acquire() as connection, connection.transaction():
        await empty_projections(connection)
    pieces: list[int] = []

    async def slow(connection: Any, projection: Projection, ends: dict[int, int], piece: int) -> dict[int, int]:
        pieces.append(piece)
        if piece > 4:
            raise StatementTooSlow("a statement was too slow")
        return await fill(connection, projection, ends, piece)

    monkeypatch.setattr(follower, "fill", slow)
    following = Follower(bench.pool)
    while await found(bench, "word8") == []:
        with suppress(StatementTooSlow):
            await following.take_piece()
    assert pieces[:2] == [follower.PIECE, follower.PIECE // 4] and min(pieces) <= 4


async def test_it_follows_beside_the_writer_and_goes_on_after_an_error(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.gate.open()
    monkeypatch.setattr(follower, "PROJECTIONS", (Projection("packet_search", (), "apc_log.away"),))
    async with bench.writing() as persister:
        await bench.gate.log([packet_entry(text="late")])
        await until(bench.has_rows("agent_packets", 1))
        assert persister.is_ready and await found(bench, "late") == []
        monkeypatch.setattr(follower, "PROJECTIONS", PROJECTIONS)
        await until(bench.has_rows("packet_search", 1))


async def test_a_piece_that_cannot_be_taken_holds_up_its_projection_alone(
    bench: LogBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.gate.open()
    broken = Projection("broken", (), "apc_log.away")
    monkeypatch.setattr(follower, "PROJECTIONS", (broken, *PROJECTIONS))
    await write(bench, packet_entry(text="behind"))
    with pytest.raises(asyncpg.UndefinedFunctionError):
        await Follower(bench.pool).take_piece()
    assert await found(bench, "behind") == [1]
    assert {row["projection"] for row in await bench.pool.fetch(PLACES)} == {one.name for one in PROJECTIONS}


BREAKS_IN_SHARD_1 = """
CREATE FUNCTION apc_log.breaks(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF of_shard = 1 THEN RAISE division_by_zero; END IF;
END $$
"""


async def test_many_shards_cost_no_more_statements_and_one_that_fails_holds_up_none_of_the_others(
    pool: asyncpg.Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = InMemoryBroker(build_topology(shards=4))
    gates = [ScriptedGate(broker.connect("orchestrator"), shard) for shard in range(4)]
    for number, gate in enumerate(gates):
        await gate.open()
        await gate.log([packet_entry(text=f"word{number}") for _ in range(2 + number)])
    await LogBench(gates[0], broker.connect("persister"), pool, PersisterSettings(shards=4)).write()
    async with pool.acquire() as connection:
        await lift_guard(cast(asyncpg.Connection, connection))
        await connection.execute(BREAKS_IN_SHARD_1)
    ends = {0: 2, 1: 3, 2: 4, 3: 5}
    assert await pool.fetchval("SELECT count(*) FROM apc_log.packet_search") == sum(ends.values())
    monkeypatch.setattr(follower, "PROJECTIONS", (Projection("breaks", (), "apc_log.breaks"),))
    for _ in range(2):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await Follower(pool).take_piece()
        places = await pool.fetch("SELECT shard, seq FROM apc_log.followed WHERE projection = 'breaks' ORDER BY shard")
        assert [tuple(row) for row in places] == [(0, 2), (2, 4), (3, 5)]
    pieces = []
    async with pool.acquire() as connection, connection.transaction():
        await empty_projections(connection)
        connection.add_query_logger(lambda query: pieces.append(query.query))
        assert await fill(connection, SEARCH, ends, piece=8) == {0: 2, 1: 2, 2: 2, 3: 2}
        first, pieces = len(pieces), []
        assert await fill(connection, SEARCH, ends, piece=9) == {1: 3, 2: 4, 3: 5}
        assert len(pieces) == 3 and first == 4, "places, and once where they begin; rows; places"


@pytest.mark.parametrize("view", ["trouble_rows", "answer_rows"])
async def test_one_shard_is_read_without_a_look_at_the_others(pool: asyncpg.Pool, view: str) -> None:
    """Each shard is read once a second: planning over the segments of all of them cost more than everything else."""
    broker = InMemoryBroker(build_topology(shards=4))
    gates = [ScriptedGate(broker.connect("orchestrator"), shard) for shard in range(4)]
    for gate in gates:
        await gate.open()
        await gate.log([packet_entry()])
    await LogBench(gates[0], broker.connect("persister"), pool, PersisterSettings(shards=4)).write()
    query = f"EXPLAIN (FORMAT JSON) SELECT * FROM apc_log.{view} WHERE shard = 1 AND seq BETWEEN 1 AND 9"
    plan = await pool.fetchval(query)
    assert set(re.findall(r'"Relation Name": "[a-z_]+_(\d+)_\d+"', plan)) == {"1"}


async def test_a_reader_reads_and_an_agent_does_not(bench: LogBench) -> None:
    await bench.gate.open()
    await write(bench, packet_entry())
    for role, may in (("apc_reader", True), ("apc_agent", False), ("apc_state_reader", False)):
        for query in (ROWS, CARDS, "SELECT * FROM apc_log.packet_words", "SELECT * FROM apc_log.run_figures"):
            assert await reads_as(bench.pool, role, query) is may, (role, query)
    assert not await reads_as(bench.pool, "apc_reader", "DELETE FROM apc_log.packet_search")
    assert not await reads_as(bench.pool, "apc_writer", "DELETE FROM apc_log.packet_search")


async def reads_as(pool: asyncpg.Pool, role: str, query: str) -> bool:
    async with pool.acquire() as connection:
        undone = connection.transaction()
        await undone.start()
        await connection.execute(f"SET LOCAL ROLE {role}")
        try:
            await connection.fetch(query)
        except asyncpg.InsufficientPrivilegeError:
            return False
        finally:
            await undone.rollback()
        return True

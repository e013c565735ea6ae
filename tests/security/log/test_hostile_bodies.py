"""A packet that has more words than the database keeps: the others are found, and it by its names."""

from typing import Any

import asyncpg
import pytest
from tests.support.log import LogBench, packet_entry

from apc_log.queries.search import Wanted, search_log

LONG = [float(f"{number + 10_000}e303") for number in range(4_000)]
"""Few bytes, and more digits than a tsvector holds."""
MANY = " ".join(f"w{number:x}" for number in range(150_000))
"""More words than a tsvector holds; no gate lets so long a packet in."""
EVERY_DIGIT = """
CREATE OR REPLACE FUNCTION apc_log.said_in(document jsonb) RETURNS SETOF text LANGUAGE sql IMMUTABLE AS $$
    SELECT string_agg(value #>> '{}', ' ') FROM jsonb_path_query(document, 'strict $.**') AS value
$$
"""
WITHOUT_FALLBACK = """
CREATE OR REPLACE FUNCTION apc_log.index_packets(of_shard integer, first_seq bigint, last_seq bigint) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO apc_log.packet_search (shard, seq, at, is_read, key_id, words)
    SELECT shard, seq, at, is_read, key_id, words FROM apc_log.packet_words
    WHERE shard = of_shard AND seq BETWEEN first_seq AND last_seq
$$
"""
PLACES = "SELECT projection, seq FROM apc_log.followed"


async def take_away(pool: asyncpg.Pool, *functions: str) -> None:
    async with pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT apc_guard.maintain('without a guard')")
        for function in functions:
            await connection.execute(function)


@pytest.mark.parametrize("is_guarded", [True, False])
@pytest.mark.parametrize("content", [{"numbers": LONG}, {"text": MANY}], ids=["digits", "words"])
async def test_one_packet_does_not_hold_up_search_and_the_others(
    bench: LogBench, content: dict[str, Any], is_guarded: bool
) -> None:
    if not is_guarded:
        await take_away(bench.pool, EVERY_DIGIT, WITHOUT_FALLBACK)
    await bench.gate.open()
    await bench.gate.log([packet_entry(text="before"), packet_entry(payload=content), packet_entry(text="behind")])
    await bench.write()
    found = (await search_log(bench.pool, Wanted("behind"))).packets
    assert [one.seq for one in found] == ([3] if is_guarded else [])
    if is_guarded:
        assert len((await search_log(bench.pool, Wanted(agent="sender-1"))).packets) == 3, "by its names"
        assert {row["seq"] for row in await bench.pool.fetch(PLACES)} == {3}

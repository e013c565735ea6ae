"""What is counted by minute, and by agent and day: each entry once, from columns that are never encrypted."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.log import LogBench, hop, packet_entry

from apc_log.batch import Entry
from apc_log.queries.activity import (
    count_minutes,
    count_recent,
    entries_behind,
    first_minute,
    latest_packets,
    list_agent_days,
    read_latencies,
)
from apc_persister.follower import Follower, empty_projections

HOSTILE = "x' | !y & \\:* \u202e <b>"


async def write(bench: LogBench, *entries: Entry) -> None:
    await bench.gate.log([*entries])
    await bench.write()


def ended(packet: Any, ms: int, metadata: str, recipient: str = "receiver-1") -> Any:
    """Return the hop that ends a delivery so many milliseconds after the verdict."""
    at = packet.created_at + timedelta(milliseconds=ms)
    one = hop(packet, ["delivery_ack", "consumer_apply"], "ROUTED", "APPLIED", recipient, 1, metadata.encode())
    return replace(one, occurred_at=[at, at])


async def days(bench: LogBench) -> dict[str, tuple[float, ...]]:
    today = datetime.now(UTC).date()
    rows = await list_agent_days(bench.pool, None, today - timedelta(days=1), today, limit=10)
    return {
        row.agent_id: (row.packets, row.refused, row.handled, row.failed, row.tokens, round(row.cost, 6))
        for row in rows
    }


async def test_packets_outcomes_and_spending_are_counted_by_agent_and_day(bench: LogBench) -> None:
    await bench.gate.open()
    first, second, held = packet_entry(), packet_entry(), replace(packet_entry(), verdict="held")
    await write(
        bench,
        first,
        second,
        held,
        packet_entry(refusal_code="QUOTA_EXCEEDED"),
        packet_entry(packet_type="HEARTBEAT"),
        ended(first, 100, '{"ended": "outcome", "usage": {"tokens": 50, "cost": 0.25}}'),
        ended(second, 900, '{"ended": "retry", "usage": {"cost": 0.5}, "usage_refused": {"cost": 0.5}}'),
        hop(held, ["policy_fail"], "SCHEMA_VALIDATED", "REJECTED_POLICY", metadata=b'{"refusal": {"code": "LATE"}}'),
    )
    expected = {"sender-1": (4, 2, 0, 0, 0, 0), "receiver-1": (0, 0, 1, 1, 50, 0.75)}
    assert await days(bench) == expected
    assert await entries_behind(bench.pool) == 0
    async with bench.pool.acquire() as connection, connection.transaction():
        await empty_projections(connection)
    assert await days(bench) == {} and await entries_behind(bench.pool) == 8
    await Follower(bench.pool).catch_up()
    await Follower(bench.pool).catch_up()
    assert await days(bench) == expected, "each entry counts once"


async def test_latencies_are_off_by_nine_in_a_hundred_at_most(bench: LogBench) -> None:
    await bench.gate.open()
    packets = [packet_entry() for _ in range(20)]
    slow = [20_000_000 if number == 19 else 40_000 + 1_000 * number for number in range(20)]
    await write(
        bench, *packets, *(ended(one, ms, '{"ended": "outcome"}') for one, ms in zip(packets, slow, strict=True))
    )
    today = datetime.now(UTC).date()
    yesterday = today - timedelta(days=1)
    p50, p95, p100 = await read_latencies(bench.pool, "receiver-1", yesterday, today, (0.5, 0.95, 1))
    assert [p50, p95, p100] == [pytest.approx(one, rel=0.1) for one in (49_000, 58_000, 20_000_000)]
    assert await read_latencies(bench.pool, "nobody", yesterday, today, (0.5,)) == [None]


async def test_rates_of_the_log_and_of_its_minutes_agree(bench: LogBench) -> None:
    await bench.gate.open()
    begin = datetime.now(UTC)
    assert await count_recent(bench.pool, begin, timedelta(seconds=2)) == [] and await first_minute(bench.pool) is None
    for _ in range(3):
        await write(bench, *(packet_entry() for _ in range(5)), packet_entry(refusal_code="QUOTA_EXCEEDED"))
    recent = await count_recent(bench.pool, begin, timedelta(hours=1))
    assert {(row.refusal_code, row.packets, row.refused) for row in recent} == {
        (None, 15, 0),
        ("QUOTA_EXCEEDED", 3, 3),
    }
    minute = begin.replace(second=0, microsecond=0)
    rows = await count_minutes(bench.pool, minute, minute + timedelta(hours=1), timedelta(minutes=1))
    assert (sum(row.packets for row in rows), sum(row.refused for row in rows)) == (18, 3)
    middle = await bench.pool.fetchval("SELECT recorded_at FROM apc_log.agent_packets WHERE seq = 7")
    later = await count_recent(bench.pool, middle, timedelta(hours=1))
    assert sum(row.packets for row in later) == 12, "from the entry on that stands at this time"
    assert await count_recent(bench.pool, datetime.now(UTC) + timedelta(days=1), timedelta(hours=1)) == []


async def test_the_newest_packets_of_an_agent_are_found_whatever_it_is_called(bench: LogBench) -> None:
    await bench.gate.open()
    mine, other = packet_entry(recipients=[HOSTILE]), packet_entry(recipients=["y"])
    await write(bench, mine, packet_entry(packet_type="HEARTBEAT", recipients=[HOSTILE]), other)
    assert [one.packet_id for one in await latest_packets(bench.pool, HOSTILE, 9)] == [mine.packet_id]
    assert [one.packet_id for one in await latest_packets(bench.pool, "y", 9)] == [other.packet_id]
    assert len(await latest_packets(bench.pool, "sender-1", 1)) == 1
    for name in ("", "'", "\\", "y:*", "y & !z", "*"):
        assert await latest_packets(bench.pool, name, 9) == [], name

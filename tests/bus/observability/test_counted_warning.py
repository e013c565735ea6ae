"""What others can provoke at will fills no log."""

import asyncio

import structlog
from structlog.testing import capture_logs

from apc_bus.observability.counted_warning import CountedWarning


async def test_a_flood_is_one_line_in_each_interval_with_a_count() -> None:
    with capture_logs() as lines:
        warning = CountedWarning(structlog.get_logger(), "nack_undeliverable", interval=0.05)
        for number in range(1000):
            warning.note(packet_id=number)
        assert [line["count"] for line in lines] == [1], "the first at once"
        async with asyncio.timeout(10):
            while len(lines) < 2:
                await asyncio.sleep(0.01)
        warning.note(packet_id="later")
        async with asyncio.timeout(10):
            while len(lines) < 3:
                await asyncio.sleep(0.01)
    assert [(line["event"], line["count"], line["packet_id"]) for line in lines] == [
        ("nack_undeliverable", 1, 0),
        ("nack_undeliverable", 999, 999),
        ("nack_undeliverable", 1, "later"),
    ]

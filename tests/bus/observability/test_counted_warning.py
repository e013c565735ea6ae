"""What others can provoke at will fills no log."""

import structlog
from structlog.testing import capture_logs
from tests.support.waiting import until

from apc_bus.telemetry import CountedWarning


async def test_a_flood_is_one_line_in_each_interval_with_a_count() -> None:
    with capture_logs() as lines:
        warning = CountedWarning(structlog.get_logger(), "nack_undeliverable", interval=0.05)
        for number in range(1000):
            warning.note(packet_id=number)
        assert [line["count"] for line in lines] == [1], "the first at once"
        await until(lambda: len(lines) == 2)
        warning.note(packet_id="later")
        await until(lambda: len(lines) == 3)
    assert [(line["event"], line["count"], line["packet_id"]) for line in lines] == [
        ("nack_undeliverable", 1, 0),
        ("nack_undeliverable", 999, 999),
        ("nack_undeliverable", 1, "later"),
    ]

"""`apc packet replay` at a terminal: usual transitions are counted, each unusual one has a line."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from apc_cli.commands.packet_replay import print_lines
from apc_log.queries import CoordinationRow, LogRow, TransitionRow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PACKET = UUID(int=1)


def move(event: str, from_state: str, to_state: str, attempt: int = 1) -> TransitionRow:
    return TransitionRow(
        0, 5, 0, 1, 1, NOW, "session-1", PACKET, "agent-1", attempt, event, from_state, to_state, NOW, "agent-1", None
    )


ROWS: list[LogRow] = [
    move("emit", "DRAFT", "NORMALIZED", attempt=0),
    move("delivery_ack", "ROUTED", "DELIVERED"),
    move("consumer_apply", "DELIVERED", "APPLIED", attempt=2),
    move("ttl_expired", "ROUTED", "EXPIRED"),
    move("discarded", "DEAD_LETTERED", "ARCHIVED"),
    CoordinationRow(0, 6, 1, 1, NOW, "session-1", 1, 0, 1, PACKET, "all_ready", "SESSION_OPEN", "CLOSED", {}),
]


async def each() -> AsyncIterator[LogRow]:
    for row in ROWS:
        yield row


async def test_the_usual_transitions_are_counted_and_the_others_printed(capsys: pytest.CaptureFixture[str]) -> None:
    await print_lines(each(), with_events=False)

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines[:-1]] == ["consumer_apply:", "ttl_expired:", "discarded:", "all_ready:"]
    assert lines[-1] == (
        "0 packets, 1 step of the session; 2 usual transitions of packets are not shown (--events shows them)"
    )


async def test_with_events_every_row_has_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    await print_lines(each(), with_events=True)

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(ROWS) + 1
    assert lines[-1] == "0 packets, 1 step of the session"

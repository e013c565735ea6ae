"""An input that ends its gate, though nobody foresaw it: it alone is set aside, with its bytes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.orchestrator.conftest import House

from apc_contracts import IdeaPayload, Packet
from apc_orchestrator.judging.judge import Judge

Build = Callable[..., Packet]
CONFLICTS = "SELECT kind, raw FROM apc_log.packet_conflicts"
ACCEPTED = "SELECT packet_id FROM apc_log.agent_packets WHERE sender_agent_id = 'red-1' AND verdict = 'accepted'"
MANY = 25


@pytest.mark.parametrize("error", [RecursionError, MemoryError, ZeroDivisionError])
async def test_an_error_that_nobody_classified_costs_one_input(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    sent = [
        packet("red-1", idea, ("sentinel",), parent=running.opening, keys=(f"k{number}",))
        for number in range(2 * MANY + 1)
    ]
    poison, judge, judged = sent[MANY], Judge.judge, Counter[Any]()

    def fail(self: Judge, batch: Any, received: Any, message: Any) -> None:
        judged[received.packet.packet_id] += 1
        if received.packet.packet_id == poison.packet_id:
            raise error("nobody has foreseen this")
        judge(self, batch, received, message)

    monkeypatch.setattr(Judge, "judge", fail)
    bodies = [await running.publish(one) for one in sent]

    async def is_over() -> bool:
        accepted = await running.pool.fetchval(f"SELECT count(*) FROM ({ACCEPTED}) AS found")
        return bool(accepted == 2 * MANY and await running.pool.fetchrow(CONFLICTS))

    await running.until(is_over, 100)
    await running.quiet()
    assert [tuple(row) for row in await running.pool.fetch(CONFLICTS)] == [("unjudgeable", bodies[MANY])]
    accepted = [row["packet_id"] for row in await running.pool.fetch(ACCEPTED)]
    assert sorted(accepted) == sorted(one.packet_id for one in sent if one is not poison)
    assert judged[poison.packet_id] == 4, "once with others, three times alone"

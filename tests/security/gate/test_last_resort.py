"""An input that ends its gate, though nobody foresaw it: it alone is set aside, with its bytes."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest
from tests.orchestrator.conftest import House
from tests.support.traffic.packets import SESSION

from apc_bus.last_resort import ATTEMPTS
from apc_contracts import IdeaPayload, Packet
from apc_contracts.contract.collection import Contracts
from apc_log.session_loading import load_session
from apc_orchestrator.judging.judge import Judge
from apc_orchestrator.shard import intake, shard_server

Build = Callable[..., Packet]
CONFLICTS = "SELECT kind, raw FROM apc_log.packet_conflicts"
JUDGED = "SELECT packet_id FROM apc_log.agent_packets WHERE sender_agent_id = 'red-1'"
MANY = 25


@pytest.mark.long
@pytest.mark.parametrize("error", [RecursionError, MemoryError])
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
        logged = await running.pool.fetch(JUDGED)
        return len(logged) == 2 * MANY and bool(await running.pool.fetch(CONFLICTS))

    await running.until(is_over, 100)
    await running.quiet()
    assert [tuple(row) for row in await running.pool.fetch(CONFLICTS)] == [("unjudgeable", bodies[MANY])]
    logged = [row["packet_id"] for row in await running.pool.fetch(JUDGED)]
    assert sorted(logged) == sorted(one.packet_id for one in sent if one is not poison), "each once"
    assert judged[poison.packet_id] == 1 + ATTEMPTS, "with others, and then alone"


@pytest.mark.long
async def test_an_input_that_waits_for_its_session_is_judged_alone_all_the_same(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that it has to be alone, the database is away at first."""
    poison = packet("red-1", idea, ("sentinel",), parent=running.opening)
    judge, judged, loads = Judge.judge, 0, 0

    def fail(self: Judge, batch: Any, received: Any, message: Any) -> None:
        nonlocal judged
        if received.packet.packet_id == poison.packet_id:
            judged += 1
            raise RuntimeError("nobody has foreseen this")
        judge(self, batch, received, message)

    async def load_at_second(pool: asyncpg.Pool, session_id: str, contracts: Contracts, *others: Any) -> Any:
        nonlocal loads
        if session_id == SESSION:
            loads += 1
            if loads % 2:
                raise OSError("away")
        return await load_session(pool, session_id, contracts, *others)

    async def is_over() -> bool:
        return judged > 1 + ATTEMPTS or bool(await running.pool.fetch(CONFLICTS))

    monkeypatch.setattr(Judge, "judge", fail)
    monkeypatch.setattr(intake, "load_session", load_at_second)
    monkeypatch.setattr(shard_server, "RETRY_SECONDS", 0.01)
    body = await running.publish(poison)
    await running.until(is_over, 60)
    assert judged == 1 + ATTEMPTS, "before, and then alone"
    assert [tuple(row) for row in await running.pool.fetch(CONFLICTS)] == [("unjudgeable", body)]

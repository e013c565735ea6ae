"""Somebody sends an agent the Tick of its schedule, to make it work when it should not."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.orchestrator.conftest import House, house
from tests.orchestrator.judging.test_content import message, register
from tests.orchestrator.judging.test_task_sessions import open_task
from tests.orchestrator.waiting.test_schedules import clerk, working
from tests.support.traffic.packets import make_packet

from apc_agents import Tick, agent
from apc_agents.scheduling import tick_id
from apc_agents.typed import document_of
from apc_contracts.vocabulary import RunPhase

__all__ = ["house"]

TICK = Tick(name="report", instant=datetime(2026, 1, 1, tzinfo=UTC))
TOLD = "SELECT count(*) FROM apc_log.packets WHERE packet_type = 'NACK' AND packet #>> '{sender,agent_id}' = 'red-1'"
ENDED = "SELECT count(*) FROM apc_log.packets WHERE packet_type = 'DECISION'"
FORGED: dict[str, dict[str, Any]] = {
    "with its id": {"packet_id": tick_id("red-1", TICK)},
    "with another id": {},
}


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("how", FORGED)
async def test_a_stranger_sends_a_tick(
    monkeypatch: pytest.MonkeyPatch, house: House, how: str, is_guarded: bool
) -> None:
    """The gate lets a member send what the agent takes; the handler looks whose it is."""
    if not is_guarded:
        monkeypatch.setattr(agent, "is_own_tick", lambda *_: True)
    seen: list[datetime] = []
    async with house.persister(), house.gate():
        await house.register()
        await register(house, document_of(Tick), "tick/1")
        opening = open_task()
        await house.publish(opening)
        content = message("tick/1", **TICK.model_dump(mode="json"))
        forged = make_packet(
            "librarian", content, ("red-1",), phase=RunPhase.EXECUTION, parent=opening, version="apc/1.1", **FORGED[how]
        )
        await house.publish(forged)
        async with working(house, clerk(seen)):

            async def is_over() -> bool:
                return bool(await house.pool.fetchval(TOLD if is_guarded else ENDED))

            await house.until(is_over)
    assert seen == ([] if is_guarded else [TICK.instant])

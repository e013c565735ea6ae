"""An agent reports an effect of another, or settles one as an operator that it is not: recorded, and nothing counts."""

from collections.abc import Callable

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_effects import ENTRIES, delivered, entry_of, report

from apc_contracts import IdeaPayload, Packet
from apc_contracts.wire.receipts import EffectEntry
from apc_orchestrator.judging import judge

Build = Callable[..., Packet]
RECORDED = "SELECT reason, user_id FROM apc_log.packet_conflicts WHERE kind = 'security' ORDER BY seq"


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_nobody_reports_the_effect_of_another(
    running: House, packet: Build, idea: IdeaPayload, monkeypatch: pytest.MonkeyPatch, is_guarded: bool
) -> None:
    if not is_guarded:
        monkeypatch.setattr(judge, "is_authentic", lambda *given: True)
    sent = await delivered(running, packet, idea)
    await report(running, entry_of(sent, EffectEntry.MADE), user="agent.blue-1")
    assert len(await running.pool.fetch(ENTRIES, sent.packet_id)) == (not is_guarded)
    recorded = [tuple(row) for row in await running.pool.fetch(RECORDED)]
    assert recorded == ([("effect not from sentinel", "agent.blue-1")] if is_guarded else [])


@pytest.mark.parametrize(
    ("entry", "by", "user"),
    [
        (EffectEntry.SETTLED, "librarian", "agent.blue-1"),
        (EffectEntry.RELEASED, "blue-1", "agent.blue-1"),
        (EffectEntry.SETTLED, "sentinel", "agent.sentinel"),
        (EffectEntry.MADE, "librarian", "agent.librarian"),
        (EffectEntry.CLAIMED, "librarian", "agent.librarian"),
    ],
)
async def test_only_an_operator_settles_for_another_and_says_no_more(
    running: House, packet: Build, idea: IdeaPayload, entry: EffectEntry, by: str, user: str
) -> None:
    sent = await delivered(running, packet, idea)
    await report(running, entry_of(sent, entry, by=by), user=user)
    assert await running.pool.fetch(ENTRIES, sent.packet_id) == []
    reason = f"effect by {by}, who may not operate as the broker user {user}"
    assert [tuple(row) for row in await running.pool.fetch(RECORDED)] == [(reason, user)]

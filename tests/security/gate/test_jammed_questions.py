"""An agent asks people without end: the questions of its session are bounded, and those of others go on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.orchestrator.judging.test_task_sessions import open_task, work
from tests.orchestrator.waiting.conftest import office
from tests.orchestrator.waiting.office import Office
from tests.security.gate.rules import take_away

from apc_contracts import Packet, SignalPayload
from apc_contracts.payloads.by_type import Question
from apc_contracts.vocabulary import Signal
from apc_log.queries.questions import list_questions

__all__ = ["office"]

BOUND = 256


def ask(parent: Packet, text: str) -> Packet:
    asked = SignalPayload(
        signal=Signal.ASK,
        question=Question(text=text),
        expected_response_by=datetime.now(UTC) + timedelta(hours=1),
    )
    fields: dict[str, Any] = {"version": "apc/1.1", "session_id": parent.trace.session_id}
    return work("red-1", asked, ("role:release-manager",), parent=parent, **fields)


@pytest.mark.parametrize("is_guarded", [False, True])
async def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch, office: Office, is_guarded: bool) -> None:
    if not is_guarded:
        take_away(monkeypatch, "questions_have_room")
    house = office.house
    async with house.gate():
        await office.begin()
        assert house.opening is not None
        for number in range(BOUND + 1):
            await house.publish(ask(house.opening, f"May I, number {number}?"))
        await house.quiet()
        asked = await list_questions(house.pool, limit=1000)
        assert len(asked) == (BOUND if is_guarded else BOUND + 1)
        elsewhere = open_task("s-2")
        await house.publish(elsewhere)
        await house.publish(ask(elsewhere, "May I?"))
        await house.quiet()
        assert len(await list_questions(house.pool, limit=1000)) == len(asked) + 1

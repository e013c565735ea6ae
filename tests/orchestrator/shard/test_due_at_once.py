"""Very many timers that are due at one moment: a batch looks at so many as it can log, the others keep their place."""

from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from tests.orchestrator.conftest import House, make_brief
from tests.orchestrator.judging.test_task_sessions import open_task, work

from apc_contracts import SignalPayload
from apc_contracts.payloads.session_signals import WakeSpec
from apc_contracts.vocabulary import Signal
from apc_orchestrator.shard import timers
from apc_orchestrator.shard.timers import Deadlines

SESSIONS = 100_000


def test_who_takes_a_few_of_a_hundred_thousand_leaves_the_others_in_their_place() -> None:
    """Else each batch would move all of them, and a gate with many due timers would do nothing else."""
    deadlines, now = Deadlines(), datetime.now(UTC)
    for number in range(SESSIONS):
        deadlines.note(f"s-{number}", now - timedelta(milliseconds=number % 7))
    found: list[str] = []
    while taken := list(islice(deadlines.due(now), 600)):
        found += taken
        assert len(deadlines) == SESSIONS - len(found)
    assert len(set(found)) == SESSIONS
    assert deadlines.next is None


async def test_all_go_off_though_a_batch_looks_at_one_session(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "LOOKS_A_BATCH", 1)
    names = [f"s-{number}" for number in range(2, 8)]
    due = datetime.now(UTC) + timedelta(seconds=1)
    came: list[str] = []

    async def have_all_come() -> bool:
        payloads = [one.payload for one in await house.handle("red-1")]
        came.extend(one.wake.key for one in payloads if isinstance(one, SignalPayload) and one.wake is not None)
        return len(came) >= len(names)

    async with house.persister(), house.gate():
        await house.register()
        for name in names:
            opening = open_task(name)
            task = work("librarian", make_brief(), ("red-1",), parent=opening, session_id=name)
            timer = SignalPayload(signal=Signal.WAKE, wake=WakeSpec(key=name, at=due))
            for packet in (opening, task, work("red-1", timer, parent=task, version="apc/1.1", session_id=name)):
                await house.publish(packet)
        await house.until(have_all_come)
    assert sorted(came) == names

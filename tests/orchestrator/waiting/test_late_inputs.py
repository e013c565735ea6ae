"""What comes after its deadline counts no more, also where no orchestrator was there when the deadline passed."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from apc_contracts import Packet
from apc_contracts.session.events import ends_what_may_come
from apc_contracts.vocabulary import CommitmentLevel
from apc_orchestrator.shard.timers import Timers

from ..judging.test_task_sessions import begin, decision, open_task, work
from .office import Office, asking

SOON = timedelta(seconds=1)
DUE = "SELECT (document #>> '{deadlines,deadline}')::timestamptz FROM apc_log.sessions"
VERDICT = "SELECT verdict FROM apc_log.agent_packets WHERE packet_id = $1"


@pytest.fixture(params=[True, False], ids=["guarded", "unguarded"])
def is_guarded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the deadlines of a session pass before its inputs are judged."""
    if not request.param:
        monkeypatch.setattr(Timers, "expire", lambda self, batch, session: None)
    return bool(request.param)


async def passed(office: Office, due: datetime) -> None:
    async def is_over() -> bool:
        return datetime.now(UTC) > due

    await office.house.until(is_over)


async def verdict_of(office: Office, packet: Packet) -> str | None:
    verdict: str | None = await office.house.pool.fetchval(VERDICT, packet.packet_id)
    return verdict


@pytest.mark.parametrize("is_given_in_time", [False, True])
async def test_an_approval_after_its_deadline(office: Office, is_guarded: bool, is_given_in_time: bool) -> None:
    """One that was given in time, and comes to the orchestrator too late, is refused as well: its person is told."""
    async with office.worker(asking(timeout=2 * SOON)):
        async with office.house.gate():
            await office.begin()
            question = await office.question()
        if not is_given_in_time:
            await passed(office, question.due_at)
        answer = await office.send_answer("alice", question)
        await passed(office, question.due_at)
        async with office.house.gate():
            decided = await office.decided()
    if is_guarded:
        assert decided == "timed_out by orchestrator: None, asked 1"
        assert await verdict_of(office, answer) != "accepted"
    else:
        assert decided == "approved by alice: go, asked 1", "the act works without the guard"


async def test_a_decision_after_the_end_of_its_session(office: Office, is_guarded: bool) -> None:
    async with office.house.gate():
        task = await begin(office.house, open_task(deadline_ms=1500))
        await office.house.handle("red-1")
    await passed(office, await office.house.pool.fetchval(DUE))
    late = work("red-1", decision(CommitmentLevel.DONE), parent=task)
    await office.house.publish(late)
    async with office.house.gate():
        await office.decided()
    assert await office.house.state() == ("HALTED" if is_guarded else "CLOSED")


@pytest.mark.parametrize("kind", ["generation", "state", "stall", "open", "search", f"wake:{UUID(int=1)}"])
def test_a_deadline_for_something_to_come_does_not_end_what_came(kind: str) -> None:
    """What was sent in time, and comes after an outage of the orchestrator, shows that it has come."""
    assert not ends_what_may_come(kind)

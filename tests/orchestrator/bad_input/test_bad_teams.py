"""Teams that are set up badly, and what is taken away while they run: each has one clear line, and nothing is lost.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_task_sessions import begin, decision, events, finish, open_task, refusal_of, work

from apc_contracts.vocabulary import CommitmentLevel

STATE = "SELECT state FROM apc_log.sessions WHERE session_id = $1"


async def test_of_two_deciders_the_first_ends_the_work_and_the_second_is_told(house: House) -> None:
    async with house.persister(), house.gate():
        task = await begin(house, open_task(deciders=("red-1", "blue-1")))
        first = work("red-1", decision(CommitmentLevel.DONE), parent=task)
        second = work("blue-1", decision(CommitmentLevel.DONE), parent=task)
        for packet in (first, second):
            await house.publish(packet)
        await house.quiet()
        told = [nack.payload.reason for nack in await house.nacks("blue-1")]
        assert await house.state() == "CLOSED"
    assert await events(house) == ["work_started", "work_done"]
    assert await refusal_of(house, second) == ("SESSION_TERMINAL", "trace.session_id")
    assert len(told) == 1 and "CLOSED" in told[0]


async def test_a_reviewer_who_also_decides_approves_nothing(house: House) -> None:
    """Another reviewer is needed; the decider's own approval is refused, with who may."""
    async with house.persister(), house.gate():
        task = await begin(house, open_task(reviewers=("red-1", "blue-1")))
        done = await finish(house, task)
        own = work("red-1", decision(CommitmentLevel.APPROVED), parent=done)
        await house.publish(own)
        await house.quiet()
        told = [nack.payload.reason for nack in await house.nacks("red-1")]
        assert await house.state() == "REVIEW"
        await house.publish(work("blue-1", decision(CommitmentLevel.APPROVED), parent=done))
        await house.quiet()
        assert await house.state() == "CLOSED"
    assert await refusal_of(house, own) == ("NOT_AUTHORIZED", "sender.agent_id")
    assert "red-1 does not review here: a reviewer sends an approval" in told[0]

"""Teams that are set up badly, and what is taken away while they run: each has one clear line, and nothing is lost.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import json
from pathlib import Path

from tests.orchestrator.conftest import House, make_brief
from tests.orchestrator.judging.test_task_sessions import begin, decision, events, finish, open_task, refusal_of, work

from apc_contracts.contract.contract import task_contract
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


async def test_a_contract_that_is_deleted_while_its_sessions_run(house: House, tmp_path: Path) -> None:
    """They end under it, from the log; a new session is refused with the remedy."""
    path = tmp_path / "own.json"
    path.write_text(json.dumps(json.loads(task_contract().body) | {"name": "own"}))
    opening, later = open_task(contract="own"), open_task("s-2", contract="own")
    async with house.persister():
        async with house.gate(contracts=str(tmp_path)):
            await house.open(opening)
            task = work("librarian", make_brief(), ("red-1",), parent=opening)
            await house.publish(task)
            await house.quiet()
        path.unlink()
        async with house.gate(contracts=str(tmp_path)):
            await house.publish(later)
            await finish(house, task)
            told = " ".join(nack.payload.reason for nack in await house.nacks("librarian"))
            assert await house.state() == "CLOSED"
    assert await refusal_of(house, later) == ("UNKNOWN_CONTRACT", "payload.session.contract")
    assert "there is no contract 'own' here: register its file with `apc contract register`" in told

"""A handler that asks people, in one process: gate, log, worker, and a person who answers."""

import asyncio

from apc_agents import Role
from apc_log.queries.questions import list_questions

from .office import Office, asking


async def test_a_handler_goes_on_with_the_first_answer_in_another_process(office: Office) -> None:
    """The gate and the worker that asked are gone when the answer comes; the second answer is refused."""
    async with office.house.gate():
        await office.begin()
        await office.hire("bob")
        async with office.worker(asking()):
            question = await office.question()
            assert (question.asker, question.may_answer, question.text) == ("red-1", ("alice", "bob"), "Ship?")
    async with office.house.gate():
        assert await office.answer("alice", question) == ("accepted", None, None)
        second = await office.answer("bob", question, "denied")
        assert second == ("refused", "NOT_AUTHORIZED", "trace.parent_packet_id")
        assert await list_questions(office.house.pool) == []
        async with office.worker(asking()):
            assert await office.decided() == "approved by alice: go, asked 1"


async def test_a_refused_question_halts_the_session_before_the_receipts_come(office: Office) -> None:
    """The delivery has ended in the worker, but the gate hears of that after the ERROR."""
    may_report, house = asyncio.Event(), office.house

    async def is_halted() -> bool:
        return await house.state() == "HALTED"

    async with house.gate(), office.worker(asking(to=Role("nobody")), may_report=may_report):
        task = await office.begin()
        await house.until(is_halted)
        assert await house.state_of(task) == "ROUTED"
        may_report.set()
        await house.quiet()
        reason = await house.pool.fetchval("SELECT document ->> 'halt_reason' FROM apc_log.sessions")
    assert reason == f"HANDLER_FAILED red-1 could not handle TASK_IR {task.packet_id}"

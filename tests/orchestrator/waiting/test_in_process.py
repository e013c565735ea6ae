"""A handler that asks people, in one process: gate, log, worker, and a person who answers."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from apc_agents import Agent, EmitRefused, HandlerContext, Retry, Role
from apc_contracts import Packet, PacketType, TaskIrPayload
from apc_contracts.payloads.by_type import Result
from apc_log.queries.questions import list_questions

from .office import HOUR, Office, asking, done

UNPROVEN = "SELECT metadata FROM apc_log.packet_events WHERE metadata::text LIKE '%no admitted packet%'"
PROPOSED = Result(schema_id="plan/1", content={"version": 2})


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
    async with house.gate(), office.worker(asking(to=Role("nobody")), may_report=may_report):
        task = await office.begin()
        assert await office.halted() == f"HANDLER_FAILED red-1 could not handle TASK_IR {task.packet_id}"
        assert await house.state_of(task) == "ROUTED"
        may_report.set()
        await house.quiet()


async def test_a_retry_after_a_refused_question_is_a_failure(office: Office) -> None:
    """No other attempt would come: the gate's refusal has no lifecycle, and the delivery has ended."""
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(PacketType.TASK_IR)
    async def ship(task: Packet[TaskIrPayload], ctx: HandlerContext) -> None:
        with suppress(EmitRefused):
            await ctx.ask("Ship?", to=Role("nobody"), timeout=HOUR)
        raise Retry(reason="the model is away")

    async with office.house.gate(), office.worker(agent):
        task = await office.begin()
        assert await office.halted() == f"HANDLER_FAILED red-1 could not handle TASK_IR {task.packet_id}"
        told = "SELECT packet #>> '{payload,message}' FROM apc_log.packets WHERE packet_type = 'ERROR'"
        assert await office.house.pool.fetchval(told) == "Retry: the model is away"


async def test_two_people_approve_each_a_question_over_restarts(office: Office) -> None:
    """The decision that follows names both answers as evidence, and the gate knows them."""
    agent = asking(approvals=2, about=done("ship").model_copy(update={"result": PROPOSED}))
    async with office.house.gate():
        await office.begin()
        await office.hire("bob")
        async with office.worker(agent):
            first = await office.question()
            assert first.content == {"schema": "plan/1", "content": {"version": 2}, "recommendation": "ship"}
            assert await office.answer("alice", first) == ("accepted", None, None)
    async with office.house.gate(), office.worker(agent):
        second = await office.question()
        texts = {f"Ship? ({number} of 2, each by another person)" for number in (1, 2)}
        assert {first.text, second.text} == texts
        assert await office.answer("bob", second) == ("accepted", None, None)
        assert await office.decided() == "approved by bob: go, asked 1"
    named = "SELECT refers_to FROM apc_log.agent_packets WHERE packet_type = 'DECISION'"
    answers = "SELECT packet_id FROM apc_log.packets WHERE packet #>> '{payload,signal}' = 'ANSWER'"
    given = {f"packet:{row['packet_id']}" for row in await office.house.pool.fetch(answers)}
    assert set(await office.house.pool.fetchval(named)) == given and len(given) == 2
    assert await office.house.pool.fetch(UNPROVEN) == []


async def test_a_question_whose_time_is_over_is_evidence_that_the_gate_knows(office: Office) -> None:
    async with office.house.gate(), office.worker(asking(timeout=timedelta(milliseconds=300))):
        await office.begin()
        assert await office.decided() == "timed_out by orchestrator: None, asked 1"
    assert await office.house.pool.fetch(UNPROVEN) == []

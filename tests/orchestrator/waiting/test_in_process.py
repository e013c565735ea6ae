"""A handler that asks people, in one process: gate, log, worker, and a person who answers."""

import asyncio
from contextlib import suppress

from apc_agents import Agent, EmitRefused, HandlerContext, Retry, Role
from apc_contracts import Packet, PacketType, TaskIrPayload
from apc_log.queries.questions import list_questions

from .office import HOUR, Office, asking


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

"""A handler that asks other agents, alone and several at once, in one process: gate, log and both workers."""

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.models.test import TestModel
from tests.support.traffic import make_idea
from tests.support.traffic.packets import make_packet, make_start

from apc_agents import Agent, AgentError, AskTimeout, HandlerContext, Reject, RequestFailed, Role, message
from apc_agents.handling.inquiry import Pending, PeopleAsked
from apc_agents.typed import document_of, schema_of
from apc_contracts import DecisionPayload, IdeaPayload, Packet, PacketType, TaskIrPayload
from apc_contracts.payloads.by_type import OnTimeout
from apc_minds.pydantic_ai import PydanticAgent

from ..judging.test_content import register
from .office import HOUR, MANAGERS, Office, done

SOON = timedelta(milliseconds=300)


@message("riddle/1")
class Riddle(BaseModel):
    text: str


@message("solution/1")
class Solution(BaseModel):
    text: str
    runs: int = 0


def answering(how: str = "solve") -> Agent:
    """Return an agent that solves riddles, or does not."""
    agent = Agent("blue-1", role="role", swarm="blue")

    @agent.on(Riddle)
    async def solve(riddle: Riddle, ctx: HandlerContext) -> Any:
        ctx.state["runs"] = ctx.state.get("runs", 0) + 1
        if how == "refuse":
            raise Reject("too hard")
        if how == "fail":
            raise ValueError("broken")
        if how == "ask":
            approval = await ctx.ask(f"May I solve {riddle.text}?", to=MANAGERS, timeout=HOUR)
            return Solution(text=f"{approval.outcome} {riddle.text}", runs=ctx.state["runs"])
        return Riddle(text="what?") if how == "misunderstand" else Solution(text=f"solved {riddle.text}", runs=1)

    return agent


def requesting(to: str | tuple[str, ...] = "blue-1", timeout: timedelta = HOUR) -> Agent:
    """Return an agent that asks for a solution and decides with it."""
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(PacketType.TASK_IR)
    async def work(task: Packet[TaskIrPayload], ctx: HandlerContext) -> DecisionPayload:
        try:
            solution = await ctx.request(Riddle(text="x"), to=to, returns=Solution, timeout=timeout)
        except (AskTimeout, RequestFailed) as failure:
            return done(f"{type(failure).__name__} {getattr(failure, 'reason', '')}")
        return done(f"{solution.text}, runs {solution.runs}")

    return agent


async def begin(office: Office, **spec: Any) -> Packet:
    task = await office.begin(**spec)
    for model in (Riddle, Solution):
        await register(office.house, document_of(model), str(schema_of(model)))
    return task


@pytest.mark.parametrize("to", ["blue-1", Role("role")])
async def test_the_first_result_of_the_type_is_the_answer(office: Office, to: str | tuple[str, ...]) -> None:
    async with office.house.gate():
        await begin(office)
        async with office.worker(requesting(to)), office.worker(answering()):
            assert await office.decided() == "solved x, runs 1"


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("refuse", "RequestFailed too hard"),
        ("fail", "RequestFailed ValueError: broken"),
        ("misunderstand", "RequestFailed blue-1 returned no solution/1"),
    ],
)
async def test_a_request_without_a_result_says_why(office: Office, how: str, said: str) -> None:
    async with office.house.gate():
        await begin(office, on_failure="continue")
        async with office.worker(requesting()), office.worker(answering(how)):
            assert await office.decided() == said


@pytest.mark.parametrize("completes", [False, True])
async def test_an_agent_of_pydantic_ai_answers_as_any_other(office: Office, completes: bool) -> None:
    joined = ModelAgent(TestModel(custom_output_args={"text": "solved it", "runs": 1}), output_type=Solution)
    solver = PydanticAgent("blue-1", joined, input=Riddle, role="role", swarm="blue", completes=completes)
    async with office.house.gate():
        await begin(office, on_failure="continue")
        async with office.worker(requesting()), office.worker(solver):
            assert await office.decided() == "solved it, runs 1"
    refused = "SELECT refusal_code FROM apc_log.agent_packets WHERE verdict <> 'accepted'"
    assert await office.house.pool.fetch(refused) == []


async def test_an_agent_of_pydantic_ai_that_gives_nothing_fails_the_request(office: Office) -> None:
    joined = ModelAgent(TestModel(custom_output_args={"text": "what?"}), output_type=Riddle)
    solver = PydanticAgent("blue-1", joined, input=Riddle, role="role", swarm="blue")
    async with office.house.gate():
        await begin(office, on_failure="continue")
        async with office.worker(requesting()), office.worker(solver):
            assert await office.decided() == "RequestFailed blue-1 returned no solution/1"


async def test_a_request_that_nobody_answers_ends_in_time(office: Office) -> None:
    async with office.house.gate():
        await begin(office)
        async with office.worker(requesting(timeout=SOON)):
            assert await office.decided() == "AskTimeout "


async def test_the_asked_agent_may_wait_itself(office: Office) -> None:
    """A request, whose handler asks a person; the gate and both workers are started again before the answer."""
    async with office.house.gate():
        await begin(office)
        async with office.worker(requesting()), office.worker(answering("ask")):
            question = await office.question()
    async with office.house.gate(), office.worker(requesting()), office.worker(answering("ask")):
        assert await office.answer("alice", question) == ("accepted", None, None)
        assert await office.decided() == "approved x, runs 1"


async def test_gather_goes_on_when_the_last_has_ended(office: Office) -> None:
    agent = Agent("red-1", role="role", swarm="red")

    @agent.on(PacketType.TASK_IR)
    async def work(task: Packet[TaskIrPayload], ctx: HandlerContext) -> DecisionPayload:
        assert await ctx.gather() == ()
        approval, late, solution = await ctx.gather(
            ctx.ask("Ship?", to=MANAGERS, timeout=HOUR),
            ctx.ask("Really?", to=MANAGERS, timeout=SOON),
            ctx.request(Riddle(text="y"), to="blue-1", returns=Solution),
        )
        try:
            await ctx.gather(
                ctx.request(Riddle(text="z"), to="blue-1", returns=Solution),
                ctx.ask("Sure?", to=MANAGERS, timeout=SOON, on_timeout="raise"),
            )
        except AskTimeout:
            return done(f"{approval.outcome}, {late.outcome}, {solution.text}, nobody was sure")
        return done("somebody was sure")

    async with office.house.gate():
        await begin(office)
        async with office.worker(agent), office.worker(answering()):
            question = await office.question()
            while question.text != "Ship?":
                question = await office.question()
            await office.answer("alice", question)
            assert await office.decided() == "approved, timed_out, solved y, nobody was sure"


async def test_places_where_a_handler_cannot_wait(office: Office) -> None:
    """Each is an AgentError with its remedy, and nothing is asked."""
    agent = Agent("red-1", role="role", swarm="red")
    said: list[str] = []

    async def refused(call: Awaitable[object]) -> None:
        try:
            await call
        except AgentError as error:
            said.append(str(error))

    @agent.on_start
    async def start(ctx: HandlerContext) -> None:
        await refused(ctx.ask("Ship?", to=MANAGERS, timeout=HOUR))

    @agent.on(PacketType.TASK_IR)
    async def work(task: Packet[TaskIrPayload], ctx: HandlerContext) -> DecisionPayload:
        def question() -> Any:
            return ctx.ask("Ship?", to=MANAGERS, timeout=HOUR)

        await asyncio.gather(refused(question()), refused(question()))
        await asyncio.create_task(refused(question()))

        async def effect() -> None:
            await refused(question())

        await ctx.once("effect", effect)
        await refused(ctx.gather(question(), "no question"))  # type: ignore[arg-type]
        return done("done")

    async with office.house.gate():
        await begin(office)
        async with office.worker(agent):
            assert await office.decided() == "done"
    assert [one.split(":")[0] for one in said] == [
        "on_start cannot wait",
        *["a wait stands in the handler itself"] * 4,
        "ctx.gather takes ctx.ask(...) and ctx.request(...), not str",
    ]


async def test_a_session_of_1_0_knows_no_questions(office: Office) -> None:
    """The handler is told, and may go on without."""
    agent = Agent("red-1", role="role", swarm="red")
    said: list[str] = []

    @agent.on(PacketType.IDEA)
    async def work(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        try:
            await ctx.ask("Ship?", to=MANAGERS, timeout=HOUR)
        except AgentError as error:
            said.append(str(error))

    async with office.house.gate():
        opening = await office.house.open(make_start())
        async with office.worker(agent):
            await office.house.publish(make_packet("blue-1", make_idea(), ("red-1",), parent=opening))

            async def is_told() -> bool:
                return bool(said)

            await office.house.until(is_told)
    assert said == ["only a session of apc/1.1 with its own contract knows questions: open one for it"]


def test_a_wait_that_nobody_awaits_is_told() -> None:
    with pytest.warns(RuntimeWarning, match=r"ctx\.ask was never awaited: nothing was asked"):
        Pending(PeopleAsked("Ship?", MANAGERS, HOUR, OnTimeout.DENY), None)  # type: ignore[arg-type]

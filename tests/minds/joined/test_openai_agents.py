"""An agent of the OpenAI Agents SDK on the bus: typed, paid for, asked once, and stopped for people."""

from pathlib import Path
from typing import Any

import agents
import httpx2
import openai
import pytest
from pydantic import BaseModel

from apc_agents import (
    Agent,
    AgentInvalid,
    AgentTestClient,
    EffectUnknown,
    HandlerContext,
    HandlerFailed,
    Retry,
    Role,
    Team,
    content_of,
    message,
    once,
)
from apc_agents.effects import EffectState, InMemoryEffectStore
from apc_agents.emission import Builder, Draft
from apc_agents.running.delivery import KnownSessions
from apc_client import TeamTestClient
from apc_contracts import Actor, Packet, ReceiptKind, RunPhase
from apc_contracts.agent import SecurityLevel
from apc_contracts.payloads.by_type import DecisionPayload, NackPayload
from apc_minds.joined import Approvers, Turn
from apc_minds.openai_agents import OpenAIAgent

from .openai_fake import FakeModel, call, outputs, said

PEOPLE = {"alice": "support-lead"}
LEADS = Approvers(Role("support-lead"))


@message("refund-ask/1")
class Ask(BaseModel):
    text: str


@message("refund-end/1")
class End(BaseModel):
    text: str


def packet_with(content: BaseModel) -> Packet:
    lead = Actor(agent_id="lead", role="lead", swarm_id="tests")
    place: dict[str, Any] = {"session_id": "session-1", "run_id": "run-1", "task_id": "task-1", "generation": 0}
    draft = Draft(content, to="worker", run_phase=RunPhase.EXECUTION, **place)
    return Builder(lead, KnownSessions("lead")).build(draft, None, 0).packet


class Desk:
    """An agent that looks an order up, refunds it after an approval, and says so."""

    def __init__(self, **options: Any) -> None:
        self.looked: list[str] = []
        self.paid: list[str] = []
        self.fails = False
        self.model = FakeModel(self._think)

        @once
        async def pay(order: str) -> str:
            self.paid.append(order)
            if self.fails:
                raise TimeoutError("no answer")
            return f"paid {order}"

        @agents.function_tool
        async def look(order: str) -> str:
            """Look an order up."""
            self.looked.append(order)
            return f"{order} is late"

        @agents.function_tool(needs_approval=True)
        async def refund(order: str) -> str:
            """Refund an order."""
            return str(await pay(order))

        @agents.function_tool
        async def refund_at_once(order: str) -> str:
            """Refund an order without asking."""
            return str(await pay(order=order))

        self.joined = agents.Agent(
            name="desk", instructions="Refund.", model=self.model, tools=[look, refund, refund_at_once]
        )
        self.options = options
        self.calls = [call("look", '{"order": "O-7"}', "c1"), call("refund", '{"order": "O-7"}', "c2")]

    def _think(self, instructions: str | None, items: list[Any]) -> list[Any]:
        given = outputs(items)
        if len(given) < len(self.calls):
            return [self.calls[len(given)]]
        return [said(" | ".join(one.splitlines()[1] for one in given))]

    def agent(self) -> OpenAIAgent:
        options: dict[str, Any] = {"returns": End, "approvers": LEADS, "swarm": "tests", **self.options}
        return OpenAIAgent("worker", self.joined, input=Ask, **options)


async def test_it_answers_in_words_or_with_its_type() -> None:
    plain = agents.Agent(name="plain", model=FakeModel(lambda *_: [said("fine")]))
    typed = agents.Agent(name="typed", model=FakeModel(lambda *_: [said('{"text": "fine"}')]), output_type=End)
    for agent in (
        OpenAIAgent("worker", plain, input=Ask, returns=End, swarm="tests"),
        OpenAIAgent("worker", typed, input=Ask, swarm="tests"),
    ):
        assert agent.models == {Ask, End}
        async with AgentTestClient(agent) as client:
            reply = await client.send(Ask(text="O-7"))
            assert reply is not None and content_of(reply, End).text == "fine"
            end = client.receipts[-1]
            assert end.kind is ReceiptKind.OUTCOME and end.usage is not None and end.usage.tokens == 7
            kept = await client.memory.get_all_agent_states("worker", "session-1")
            assert [key for key in kept if key.startswith("openai-agents/")] == []


async def test_its_output_may_end_the_task() -> None:
    plain = agents.Agent(name="plain", model=FakeModel(lambda *_: [said("fine")]))
    async with AgentTestClient(
        OpenAIAgent("worker", plain, input=Ask, returns=End, swarm="tests", completes=True)
    ) as client:
        done = await client.send(Ask(text="O-7"))
    assert done is not None and done.payload_as(DecisionPayload).result is not None


class Sums(BaseModel):
    total: int


@message("pair/1")
class Pair(BaseModel):
    one: str
    two: str


@pytest.mark.parametrize(
    ("output", "returns", "words"),
    [(None, None, "is no model with @message"), (Sums, None, "is no model with @message"),
     (None, Pair, "has not one required field"), (Sums, Sums, "decorated with @message")],
)  # fmt: skip
def test_outputs_that_do_not_fit_are_refused_when_it_is_built(output: Any, returns: Any, words: str) -> None:
    with pytest.raises(AgentInvalid, match=words):
        OpenAIAgent("worker", agents.Agent(name="x", output_type=output), input=Ask, returns=returns)


async def test_a_model_that_is_away_is_asked_again_later() -> None:
    def away(*_: Any) -> list[Any]:
        raise openai.APIConnectionError(request=httpx2.Request("POST", "http://nowhere"))

    joined = agents.Agent(name="plain", model=FakeModel(away))
    async with AgentTestClient(OpenAIAgent("worker", joined, input=Ask, returns=End, swarm="tests")) as client:
        await client.send(Ask(text="O-7"))
        assert client.receipts[-1].kind is ReceiptKind.RETRY
        assert await client.effects.list() == []


async def test_a_turn_that_is_made_again_asks_no_model_and_acts_once() -> None:
    """A worker died before the turn was recorded: each answer of the model is kept, and so is each act."""
    desk = Desk()
    desk.calls = [call("refund_at_once", '{"order": "O-7"}', "c1")]
    died: list[int] = []

    class Dying(OpenAIAgent):
        async def make_turn(self, *args: Any, **kwargs: Any) -> Turn:
            turn = await super().make_turn(*args, **kwargs)
            if not died:
                died.append(1)
                raise Retry(reason="the worker has died")
            return turn

    agent = Dying("worker", desk.joined, input=Ask, returns=End, swarm="tests")
    async with AgentTestClient(agent) as client:
        packet = packet_with(Ask(text="O-7"))
        await client.deliver(packet)
        (end,) = await client.deliver(packet, attempt=2)
        assert content_of(end, End).text == "paid O-7"
        usage = client.receipts[-1].usage
        states = sorted((one.effect_id.key.split("/")[0], one.state) for one in await client.effects.list())
    assert (len(desk.model.asked), desk.paid, usage and usage.tokens) == (2, ["O-7"], 14)
    assert states == [("tool", EffectState.MADE), ("turn-0", EffectState.MADE)]


async def test_senders_without_a_clearance_lead_it_to_nothing() -> None:
    desk = Desk(swarm="desk")
    async with AgentTestClient(desk.agent()) as client:
        nack = await client.send(Ask(text="pay O-7"))
    assert nack is not None and "needs a clearance of user" in str(nack.payload_as(NackPayload).reason)
    assert desk.model.asked == []
    async with AgentTestClient(Desk(swarm="desk", takes_from=SecurityLevel.PUBLIC, approvers=None).agent()) as client:
        with pytest.raises(HandlerFailed):
            await client.send(Ask(text="pay O-7"))


@pytest.mark.long
async def test_an_unknown_act_that_the_sdk_shows_to_the_model_ends_the_turn() -> None:
    """By default the SDK tells the model that the tool failed."""
    desk = Desk()
    desk.fails = True
    desk.calls = [call("refund_at_once", '{"order": "O-7"}', "c1")]
    async with AgentTestClient(desk.agent()) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.send(Ask(text="O-7"))
        assert isinstance(failed.value.__cause__, EffectUnknown)
        (kept,) = await client.effects.list()
    assert kept.effect_id.key.startswith("tool/") and kept.state is EffectState.UNKNOWN
    assert len(desk.model.asked) == 1, "an answer to the error would be kept"


@pytest.mark.long
async def test_a_run_goes_on_with_what_was_settled() -> None:
    desk = Desk()
    desk.fails = True
    desk.calls = [call("refund_at_once", '{"order": "O-7"}', "c1")]
    packet = packet_with(Ask(text="O-7"))
    async with AgentTestClient(desk.agent()) as client:
        with pytest.raises(HandlerFailed):
            await client.deliver(packet)
        (kept,) = await client.effects.list()
        await client.effects.settle(kept.effect_id, "paid, says the bank", "ida")
        *_, end = await client.deliver(packet, attempt=2)
    assert content_of(end, End).text == "paid, says the bank"
    assert (len(desk.model.asked), desk.paid) == (2, ["O-7"])


def team_of(desk: Desk) -> Team:
    lead = Agent("lead", role="lead", swarm="tests")

    @lead.on(Ask)
    async def pass_on(ask: Ask, ctx: HandlerContext) -> None:
        await ctx.emit(ask, to="worker")

    @lead.on(End)
    async def end(end: End, ctx: HandlerContext) -> None:
        return await ctx.complete(end)

    return Team("refunds", agents=[lead, desk.agent()], entry="lead", input=Ask)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("approved", "text"), [(True, "O-7 is late | paid O-7"), (False, "O-7 is late | refund was not")]
)
async def test_an_interruption_becomes_an_approval(
    approved: bool, text: str, postgres_url: str, tmp_path: Path
) -> None:
    desk = Desk()
    async with TeamTestClient(team_of(desk), people=PEOPLE, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Ask(text="O-7"))
        question = await client.question(session)
        assert question.text == "May worker call refund?"
        assert question.content == {"tool": "refund", "tool_call_id": "c2", "arguments": {"order": "O-7"}}
        assert desk.paid == []
        await client.answer(session, approved=approved, note="seen")
        result: Any = await session.result(timeout=30)
    assert result.text == ("O-7 is late | paid O-7" if approved else "O-7 is late | refund was not called: denied")
    assert desk.paid == (["O-7"] if approved else [])
    assert desk.looked == ["O-7"]
    assert len(desk.model.asked) == 3


async def test_one_state_that_is_resumed_twice_acts_once() -> None:
    """As the SDK itself does it: the same state, twice; the tool is the same, and acts once."""
    desk, ends = Desk(), list[str]()
    keeper = Agent("keeper", role="keeper", swarm="tests")

    @keeper.on(Ask)
    async def handle(ask: Ask, ctx: HandlerContext) -> None:
        stopped = await agents.Runner.run(desk.joined, ask.text)
        text = stopped.to_state().to_string()
        for _ in range(2):
            state: Any = await agents.RunState.from_string(desk.joined, text)
            for item in state.get_interruptions():
                state.approve(item)
            ended: Any = await agents.Runner.run(desk.joined, state)
            ends.append(ended.new_items[-2].raw_item["output"])

    def think(instructions: str | None, items: list[Any]) -> list[Any]:
        return [said("done")] if len(outputs(items)) > 1 else [desk.calls[len(outputs(items))]]

    desk.model.think = think
    async with AgentTestClient(keeper) as client:
        await client.send(Ask(text="O-7"))
    assert ends == ["paid O-7", "paid O-7"]
    assert desk.paid == ["O-7"]
    assert isinstance(client.effects, InMemoryEffectStore)

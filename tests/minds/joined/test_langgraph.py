"""A graph of LangGraph on the bus: checkpointed beside the agent's state, stopped for people, and acting once."""

from pathlib import Path
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt
from pydantic import BaseModel

from apc_agents import (
    Agent,
    AgentError,
    AgentInvalid,
    AgentTestClient,
    EffectUnknown,
    HandlerContext,
    HandlerFailed,
    Role,
    Team,
    content_of,
    message,
    once,
)
from apc_agents.effects import EffectState
from apc_agents.emission import Builder, Draft
from apc_agents.running.delivery import KnownSessions
from apc_client import TeamTestClient
from apc_contracts import Actor, Packet, RunPhase
from apc_minds.joined import Approvers
from apc_minds.langgraph import AgentStateSaver, LangGraphAgent

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


class State(TypedDict, total=False):
    text: str
    seen: Annotated[list[str], lambda old, new: old + new]


class Desk:
    """A graph that looks an order up, asks twice in one node, and pays."""

    def __init__(self, **options: Any) -> None:
        self.ran: list[str] = []
        self.paid: list[str] = []
        self.fails = 0
        self.hides = False
        self.asks = True
        self.options = options

        @once
        async def pay(order: str) -> str:
            self.paid.append(order)
            if self.fails:
                self.fails -= 1
                raise TimeoutError("no answer")
            return f"paid {order}"

        async def look(state: State) -> State:
            self.ran.append("look")
            return {"seen": ["look"]}

        async def act(state: State) -> State:
            self.ran.append("act")
            notes = []
            if self.asks:
                notes = [interrupt({"question": f"{n} {state['text']}?", "euros": 5}) for n in ("pay", "really pay")]
            if not all(one["approved"] for one in notes):
                return {"text": f"no: {notes[-1]['note']}", "seen": ["act"]}
            try:
                return {"text": str(await pay(order=state["text"])), "seen": ["act"]}
            except (EffectUnknown, TimeoutError):
                if not self.hides:
                    raise
                return {"text": "could not pay", "seen": ["act"]}

        self.graph = StateGraph(State).add_node(look).add_node(act)
        self.graph.add_edge(START, "look").add_edge("look", "act").add_edge("act", END)

    def agent(self) -> LangGraphAgent:
        options: dict[str, Any] = {"approvers": LEADS, "swarm": "tests", **self.options}
        compiled = self.graph.compile(checkpointer=AgentStateSaver())
        return LangGraphAgent("worker", compiled, input=Ask, returns=End, **options)


@pytest.mark.parametrize("checkpointer", [None, False, True])
def test_a_graph_without_checkpoints_is_refused_when_it_is_built(checkpointer: Any) -> None:
    compiled = Desk().graph.compile(checkpointer=checkpointer)
    with pytest.raises(AgentInvalid, match=r"has no checkpointer, .*: graph\.compile\(checkpointer=AgentStateSaver"):
        LangGraphAgent("worker", compiled, input=Ask, returns=End)


async def test_a_run_leaves_no_checkpoints_and_its_turn() -> None:
    desk = Desk()
    desk.asks = False
    async with AgentTestClient(desk.agent()) as client:
        end = await client.send(Ask(text="O-7"))
        assert end is not None and content_of(end, End).text == "paid O-7"
        assert await client.memory.get_all_agent_states("worker", "session-1") == {}
        states = sorted((one.effect_id.key.split("/")[0], one.state) for one in await client.effects.list())
    assert states == [("tool", EffectState.MADE), ("turn-0", EffectState.MADE)]
    assert desk.ran == ["look", "act"]


async def test_tokens_of_its_chat_models_travel_in_the_outcome() -> None:
    usage: Any = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    answers = iter([AIMessage("fine", usage_metadata=usage), AIMessage("very", usage_metadata=usage)])
    model = GenericFakeChatModel(messages=answers)

    async def think(state: State) -> State:
        said = [str((await model.ainvoke(state["text"])).content) for _ in range(2)]
        return {"text": " ".join(said)}

    graph = StateGraph(State).add_node(think).add_edge(START, "think").add_edge("think", END)
    compiled = graph.compile(checkpointer=AgentStateSaver())
    async with AgentTestClient(LangGraphAgent("worker", compiled, input=Ask, returns=End, swarm="tests")) as client:
        end = await client.send(Ask(text="O-7"))
        used = client.receipts[-1].usage
    assert end is not None and content_of(end, End).text == "fine very"
    assert used is not None and used.tokens == 14


async def test_states_that_are_not_messages_are_mapped() -> None:
    def enters(ask: Ask) -> dict[str, str]:
        return {"text": f"<{ask.text}>"}

    def leaves(state: dict[str, Any]) -> End:
        return End(text=state["text"].upper())

    desk = Desk(enters=enters, leaves=leaves)
    desk.asks = False
    async with AgentTestClient(desk.agent()) as client:
        end = await client.send(Ask(text="o-7"))
    assert end is not None and content_of(end, End).text == "PAID <O-7>"


async def test_a_plain_node_acts_in_its_thread() -> None:
    paid: list[str] = []

    @once
    def pay(order: str) -> str:
        paid.append(order)
        return f"paid {order}"

    def act(state: State) -> State:
        return {"text": pay(state["text"]) + pay(state["text"])}

    graph = StateGraph(State).add_node(act).add_edge(START, "act").add_edge("act", END)
    compiled = graph.compile(checkpointer=AgentStateSaver())
    async with AgentTestClient(LangGraphAgent("worker", compiled, input=Ask, returns=End, swarm="tests")) as client:
        end = await client.send(Ask(text="a"))
    assert end is not None and content_of(end, End).text == "paid apaid a"
    assert paid == ["a"]


@pytest.mark.parametrize("hides", [False, True])
async def test_an_unknown_act_goes_on_when_it_is_settled(hides: bool) -> None:
    """What had ended before does not run again, and a node that hid the error has not ended."""
    desk = Desk()
    desk.asks, desk.fails, desk.hides = False, 1, hides
    packet = packet_with(Ask(text="O-7"))
    async with AgentTestClient(desk.agent()) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.deliver(packet)
        assert isinstance(failed.value.__cause__, EffectUnknown)
        (kept,) = await client.effects.list()
        assert (kept.state, desk.ran) == (EffectState.UNKNOWN, ["look", "act"])
        await client.effects.settle(kept.effect_id, "paid, says the bank", "ida")
        *_, end = await client.deliver(packet, attempt=2)
    assert content_of(end, End).text == "paid, says the bank"
    assert (desk.ran, desk.paid) == (["look", "act", "act"], ["O-7"])


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
@pytest.mark.parametrize("last", [True, False])
async def test_each_interrupt_becomes_an_approval(last: bool, postgres_url: str, tmp_path: Path) -> None:
    """Two of one node, one after the other: the second answer is not taken for the first."""
    desk = Desk()
    async with TeamTestClient(team_of(desk), people=PEOPLE, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Ask(text="O-7"))
        first = await client.question(session)
        assert (first.text, first.content["value"]) == ("pay O-7?", {"question": "pay O-7?", "euros": 5})
        await client.answer(session, approved=True, note="one")
        second = await client.question(session)
        assert second.text == "really pay O-7?"
        await client.answer(session, approved=last, note="two")
        result: Any = await session.result(timeout=30)
    assert result.text == ("paid O-7" if last else "no: two")
    assert desk.paid == (["O-7"] if last else [])
    assert desk.ran == ["look", "act", "act", "act"]


@pytest.mark.postgres
async def test_interrupts_of_parallel_nodes_are_one_wait(postgres_url: str, tmp_path: Path) -> None:
    async def one(state: State) -> State:
        return {"seen": [str(interrupt("one?")["approved"])]}

    async def two(state: State) -> State:
        return {"seen": [str(interrupt("two?")["approved"])]}

    async def end(state: State) -> State:
        return {"text": " ".join(state["seen"])}

    desk = Desk()
    desk.graph = StateGraph(State).add_node(one).add_node(two).add_node(end)
    desk.graph.add_edge(START, "one").add_edge(START, "two").add_edge(["one", "two"], "end").add_edge("end", END)
    async with TeamTestClient(team_of(desk), people=PEOPLE, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Ask(text="O-7"))
        for approved in (True, False):
            await client.answer(session, approved=approved)
        result: Any = await session.result(timeout=30)
    assert sorted(result.text.split()) == ["False", "True"]


async def test_a_checkpointer_that_forgets_is_said(postgres_url: str, tmp_path: Path) -> None:
    desk = Desk()
    saver = InMemorySaver()
    compiled = desk.graph.compile(checkpointer=saver)
    worker = LangGraphAgent("worker", compiled, input=Ask, returns=End, swarm="tests", approvers=LEADS, completes=True)
    team = Team("refunds", agents=[worker], entry="worker", input=Ask)
    async with TeamTestClient(team, people=PEOPLE, database_url=postgres_url, folder=tmp_path) as client:
        session = await client.start(Ask(text="O-7"))
        question = await client.question(session)
        saver.storage.clear()
        await client.answer(session, approved=True)
        with pytest.raises(Exception, match="are not kept any more"):
            await session.result(timeout=30)
    assert question.text == "pay O-7?" and desk.paid == []


async def test_a_saver_keeps_what_a_graph_asks_it_to() -> None:
    """As LangGraph's own saver in memory: what is put is got, newest first, with its parent and its writes."""
    saver = AgentStateSaver()
    keeper = Agent("keeper", role="keeper", swarm="tests")
    seen: list[Any] = []

    @keeper.on(Ask)
    async def handle(ask: Ask, ctx: HandlerContext) -> None:
        thread: Any = {"configurable": {"thread_id": str(ctx.packet.packet_id), "checkpoint_ns": ""}}
        assert await saver.aget_tuple(thread) is None
        configs = [thread]
        for number in range(3):
            checkpoint: Any = {
                "v": 4, "id": f"1f-{number}", "ts": "", "channel_values": {"n": {number}}, "channel_versions": {},
                "versions_seen": {}, "updated_channels": None,
            }  # fmt: skip
            metadata: Any = {"source": "loop", "step": number}
            configs.append(await saver.aput(configs[-1], checkpoint, metadata, {}))
        await saver.aput_writes(configs[-1], [("a", 1), ("__error__", "bad")], "task-2", "b")
        await saver.aput_writes(configs[-1], [("a", 2), ("__error__", "worse")], "task-2", "b")
        await saver.aput_writes(configs[-1], [("b", 3)], "task-1", "a")
        newest = await saver.aget_tuple(thread)
        assert newest is not None and newest.parent_config == configs[-2]
        assert newest.checkpoint["channel_values"] == {"n": {2}}
        assert newest.pending_writes == [("task-1", "b", 3), ("task-2", "__error__", "worse"), ("task-2", "a", 1)]
        seen.append([one.metadata["step"] async for one in saver.alist(thread, before=configs[-1])])
        seen.append([one.metadata["step"] async for one in saver.alist(thread, limit=2)])
        seen.append([one.metadata["step"] async for one in saver.alist(thread, filter={"step": 0})])
        other: Any = {"configurable": {"thread_id": str(uuid4()), "checkpoint_ns": ""}}
        with pytest.raises(AgentError, match="the handled packet alone"):
            await saver.aget_tuple(other)
        with pytest.raises(AgentError, match="ainvoke"):
            saver.get_tuple(thread)
        await saver.adelete_thread(str(ctx.packet.packet_id))
        assert await saver.aget_tuple(thread) is None

    async with AgentTestClient(keeper) as client:
        await client.send(Ask(text="O-7"))
    assert seen == [[1, 0], [2, 1], [0]]
    with pytest.raises(AgentError, match="no handler runs here"):
        await saver.aget_tuple({"configurable": {"thread_id": "x"}})

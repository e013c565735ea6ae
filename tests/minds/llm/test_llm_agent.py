"""An agent with a mind on the bus: an ordinary agent that emits, is accounted for, and runs again without a model."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import orjson
import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from structlog.testing import capture_logs
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import AgentError, AgentTestClient, HandlerContext
from apc_agents.clearance import Clearance
from apc_agents.handling.state import InMemoryStateStore
from apc_contracts import Packet, PacketType, ReceiptKind, RunPhase, Signal, SignalPayload
from apc_contracts.agent import SecurityLevel
from apc_contracts.payloads.by_type import ErrorPayload, IdeaPayload, NackPayload
from apc_minds.actions import ToolRegistry
from apc_minds.context import SessionConfig
from apc_minds.llm import LLMAgent, LLMSettings, ModelUnusable
from apc_minds.llm.agent import told
from apc_minds.memory import InMemoryMemoryStore

from .models import document, model_of, model_saying, silent_model

CLEARED = Clearance(agents={"tester": SecurityLevel.USER})
PROPOSE = {
    "action": "emit",
    "type": "internal",
    "params": {
        "packet_type": "IDEA",
        "payload": {
            "method_id": "m-2",
            "intent": "Try it the other way round.",
            "assumptions": [],
            "required_capabilities": [],
            "expected_impact": {"quality_gain": 0.1, "cost_change": 0.0, "risk_change": 0.0},
            "failure_modes": [],
        },
        "confidence": 0.6,
    },
}
REMEMBER = {"action": "remember", "type": "internal", "params": {"key": "method", "value": "m-1"}}


def agent_with(model: Model | str | None, **options: Any) -> LLMAgent:
    options.setdefault("settings", LLMSettings(max_steps=4))
    return LLMAgent("thinker-1", role="researcher", swarm="minds", model=model, **options)


def kept_for_strangers(state: dict[str, Any]) -> Any:
    return state["compartments"]["public"]


def conversation_of(state: dict[str, Any]) -> Any:
    return orjson.loads(kept_for_strangers(state)["conversation"]["document"])


async def test_it_thinks_about_a_packet_and_emits_by_an_action(idea: MakeIdea) -> None:
    model = model_saying(document("Done.", actions=[PROPOSE, REMEMBER], stop=True))
    async with AgentTestClient(agent_with(model)) as client:
        reply = await client.send(idea("m-1"), phase=RunPhase.DISCOVERY)
        state = await client.state()
        outcome = client.receipts[-1]
    assert reply is not None and reply.payload_as(IdeaPayload).method_id == "m-2"
    assert kept_for_strangers(state)["remembered"] == {"method": "m-1"}
    assert outcome.kind is ReceiptKind.OUTCOME and outcome.usage is not None and outcome.usage.tokens


@pytest.mark.parametrize(("clearance", "withheld"), [(None, ["add", "long_page"]), (CLEARED, [])])
async def test_tools_that_a_sender_may_not_use_are_logged_with_the_remedy(
    tools: ToolRegistry, idea: MakeIdea, clearance: Clearance | None, withheld: list[str]
) -> None:
    agent = agent_with(model_saying(document("Done.")), tools=tools, clearance=clearance)
    with capture_logs() as lines:
        async with AgentTestClient(agent) as client:
            await client.send(idea("m-1"))
    said = [line for line in lines if line["event"] == "tools_withheld"]
    assert [line["tools"] for line in said] == ([withheld] if withheld else [])
    assert all((line["level"], line["log_level"]) == ("public", "warning") for line in said)
    assert all("clearance" in line["fix"] and line["senders"] for line in said)


async def test_what_it_has_cost_travels_in_the_outcome(idea: MakeIdea) -> None:
    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text = '{"status": "SUCCESS", "stop": true, "response": "yes"}'
        usage = RequestUsage(input_tokens=100, output_tokens=20, cost=Decimal("0.25"))
        return ModelResponse(parts=[TextPart(text)], usage=usage)

    async with AgentTestClient(agent_with(FunctionModel(answer))) as client:
        await client.send(idea("m-1"))
        usage = client.receipts[-1].usage
    assert usage is not None and (usage.tokens, usage.cost) == (120, 0.25)


async def test_the_conversation_goes_on_in_the_next_packet(idea: MakeIdea) -> None:
    seen: list[int] = []

    def think(messages: list[ModelMessage], info: AgentInfo) -> Any:
        seen.append(len(messages))
        return document("noted")

    async with AgentTestClient(agent_with(model_of(think))) as client:
        await client.send(idea("m-1"))
        await client.send(idea("m-2"))
        await client.send(SignalPayload(signal=Signal.QUERY, reason="What have you seen?"))
    assert seen == [1, 3, 5]


async def test_what_runs_again_asks_no_model_and_emits_the_same(idea: MakeIdea, make_packet: MakePacket) -> None:
    """A worker that died before it saved anything: the next one has the memory, and a model that must not be asked."""
    memory = InMemoryMemoryStore()
    packet = make_packet(idea("m-1"), to="thinker-1")
    model = model_saying("prose first", document(actions=[PROPOSE, REMEMBER], stop=False), document("Done."))
    silent = silent_model()
    silent._model_name = model.model_name
    runs = []
    for thinking in (model, silent):
        async with AgentTestClient(agent_with(thinking), memory=memory, states=InMemoryStateStore()) as client:
            emitted = await client.deliver(packet)
            runs.append(([one.packet_id for one in emitted], await client.state(), client.receipts[-1].usage))
    assert runs[0] == runs[1]
    assert len(runs[0][0]) == 1


async def test_endless_prose_ends_in_an_error_that_is_paid_for_and_changes_nothing(idea: MakeIdea) -> None:
    async with AgentTestClient(
        agent_with(model_saying(document(actions=[REMEMBER], stop=False), *["prose"] * 3))
    ) as client:
        reply = await client.send(idea("m-1"))
        state, outcome = await client.state(), client.receipts[-1]
    assert reply is not None and reply.packet_type is PacketType.ERROR
    error = reply.payload_as(ErrorPayload)
    assert error.error_code == "MODEL_ERROR" and "no AgentResponse" in error.message
    assert not state
    assert outcome.kind is ReceiptKind.OUTCOME and outcome.usage is not None and outcome.usage.tokens


async def test_a_packet_that_the_window_cannot_hold_is_rejected(idea: MakeIdea) -> None:
    agent = agent_with(silent_model(), config=SessionConfig(max_tokens=60))
    async with AgentTestClient(agent) as client:
        reply = await client.send(idea("m-" + "x" * 200))
        assert reply is not None and "tokens" in (reply.payload_as(NackPayload).reason or "")
        assert client.receipts[-1].kind is ReceiptKind.REJECT


async def test_the_constraints_of_a_packet_are_honoured(idea: MakeIdea, make_packet: MakePacket) -> None:
    asked = {"agent_context": {"processing_directives": {"response_constraints": {"max_length": 10}}}}
    async with AgentTestClient(agent_with(model_saying(document("far too long"), document("short")))) as client:
        await client.deliver(make_packet(idea("m-1"), to="thinker-1", metadata=asked))
        turns = conversation_of(await client.state())["window"]["turns"]
    assert turns[-1]["content"] == "short"


async def test_a_model_that_does_not_answer_is_asked_again_later(idea: MakeIdea) -> None:
    async def wait(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with AgentTestClient(agent_with(FunctionModel(wait), settings=LLMSettings(timeout=0.02))) as client:
        await client.send(idea("m-1"))
        assert client.receipts[-1].kind is ReceiptKind.RETRY


async def test_a_long_session_is_compressed_and_told_to_the_log_only() -> None:
    agent = agent_with(model_of(lambda messages, info: document("word " * 40)), config=SessionConfig(max_tokens=600))
    async with AgentTestClient(agent) as client:
        for number in range(12):
            await client.send(SignalPayload(signal=Signal.QUERY, reason=f"{number}: what now?"))
        await client.settled()
        state = await client.state()
        audits = [packet for packet in client.emitted if packet.metadata and "context" in packet.metadata]
    assert conversation_of(state)["compressions"] == len(audits) > 0


async def test_the_model_is_made_when_it_is_first_needed() -> None:
    agent = LLMAgent("thinker-1", role="researcher", swarm="minds", settings=LLMSettings(model=None))
    assert PacketType.IDEA in agent.handles
    with pytest.raises(ModelUnusable, match="APC_LLM_MODEL"):
        _ = agent.mind


def test_the_context_of_a_packet_is_told(idea: MakeIdea, make_packet: MakePacket) -> None:
    given = {
        "narrative_state": {"current_realm": "harbour", "symbolic_focus": ["crane", "tide"]},
        "user_profile": {"archetypal_alignment": {"primary_archetype": "Sage"}},
        "processing_directives": {"requested_action": "evaluate_data"},
    }
    context = told(make_packet(idea("m-9"), metadata={"agent_context": given})).partition("\nContext: ")[2]
    assert orjson.loads(context) == {
        "realm": "harbour",
        "symbols": ["crane", "tide"],
        "archetype": "Sage",
        "requested_action": "evaluate_data",
    }
    plain = told(make_packet(idea("m-9"))).partition("\nContext: ")[2]
    assert orjson.loads(plain) == {"realm": "DISCOVERY"}


def test_a_packet_is_told_by_type_sender_and_payload(idea: MakeIdea, make_packet: MakePacket) -> None:
    assert told(make_packet(idea("m-9"))).startswith("IDEA from builder-1 (")


async def test_its_loop_cannot_wait(idea: MakeIdea) -> None:
    """A tool that got hold of the handler's ctx is told what to do instead."""
    said: list[str] = []
    tools = ToolRegistry()
    held: list[HandlerContext] = []

    @tools.tool("ask_people", description="Ask.", security_level=SecurityLevel.PUBLIC)
    async def ask_people() -> str:
        try:
            await held[0].ask("Ship?", to="alice", timeout=timedelta(hours=1))
        except AgentError as error:
            said.append(str(error))
        return "asked"

    class Holding(LLMAgent):
        async def _handle(self, packet: Packet, ctx: HandlerContext) -> None:
            held.append(ctx)
            await super()._handle(packet, ctx)

    call = {"action": "ask_people", "type": "tool", "params": {}}
    model = model_saying(document("Wait.", actions=[call]), document("Done.", stop=True))
    agent = Holding(
        "thinker-1", role="researcher", swarm="minds", model=model, tools=tools, settings=LLMSettings(max_steps=4)
    )
    async with AgentTestClient(agent) as client:
        await client.send(idea())
    assert said == [
        "the loop of an LLMAgent cannot wait: emit a packet from the tool to an agent whose handler asks, or use a "
        "PydanticAgent"
    ]

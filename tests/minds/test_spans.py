"""What viewers of traces learn of agents: who worked in which session, the model with its tokens, the tools by name."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage
from tests.minds.test_pydantic_agent import Diff, Remark, said
from tests.minds.workshop import CLEARANCE, Workshop, in_context, response, tool

from apc_agents import Agent, AgentTestClient, HandlerContext, Reject
from apc_bus.telemetry import TraceScope, use_tracer_provider
from apc_minds.actions import ActionExecutor
from apc_minds.pydantic_ai import PydanticAgent

SECRET = "the launch code is 0000"


@pytest.fixture(params=[TraceScope.AGENTS, TraceScope.ALL])
def exporter(request: pytest.FixtureRequest) -> Iterator[InMemorySpanExporter]:
    """Spans of this process as they end, in both scopes."""
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    use_tracer_provider(provider, request.param)
    yield memory
    use_tracer_provider(None)


def spans_of(exporter: InMemorySpanExporter) -> dict[str, list[ReadableSpan]]:
    """Return the spans of agents by what they do; other hops under ''."""
    found: dict[str, list[ReadableSpan]] = {}
    for span in exporter.get_finished_spans():
        found.setdefault(str(told(span).get("gen_ai.operation.name", "")), []).append(span)
    return found


def told(span: ReadableSpan) -> dict[str, Any]:
    """Return what a span says."""
    return dict(span.attributes or {})


def reviewer(**options: Any) -> PydanticAgent:
    def think(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(part, ToolReturnPart) for message in messages for part in message.parts):
            return said(info, SECRET)
        usage = RequestUsage(input_tokens=100, output_tokens=20)
        return ModelResponse(parts=[ToolCallPart("lookup", {"order": SECRET})], usage=usage)

    joined = ModelAgent(FunctionModel(think, model_name="thinker"), output_type=Remark, **options)

    @joined.tool_plain
    def lookup(order: str) -> str:
        return SECRET

    return PydanticAgent("reviewer", joined, input=Diff, clearance=CLEARANCE)


async def test_agent_model_and_tool_are_one_conversation(exporter: InMemorySpanExporter) -> None:
    async with AgentTestClient(reviewer()) as client:
        await client.send(Diff(text=SECRET), session_id="session-7")
    spans = spans_of(exporter)
    (agent,) = spans["invoke_agent"]
    assert told(agent) | {
        "gen_ai.agent.id": "reviewer",
        "gen_ai.agent.name": "reviewer",
        "gen_ai.conversation.id": "session-7",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "apc.agent.reviewer.normal",
    } == told(agent)
    (call,) = spans["execute_tool"]
    assert (told(call)["gen_ai.tool.name"], told(call)["gen_ai.agent.id"]) == ("lookup", "reviewer")
    models = spans["chat"]
    assert [told(one)["gen_ai.request.model"] for one in models] == ["thinker", "thinker"]
    assert told(models[0])["gen_ai.usage.input_tokens"] == 100
    everything = [agent, call, *models]
    assert {told(one)["gen_ai.conversation.id"] for one in everything} == {"session-7"}
    assert {one.context.trace_id for one in everything} == {agent.context.trace_id}
    assert {one.parent.span_id for one in (call, *models) if one.parent} == {agent.context.span_id}
    assert SECRET not in str([span.to_json() for span in exporter.get_finished_spans()])


async def test_an_author_who_decides_what_spans_tell_gets_no_second_ones(exporter: InMemorySpanExporter) -> None:
    own, kept = TracerProvider(), InMemorySpanExporter()
    own.add_span_processor(SimpleSpanProcessor(kept))
    agent = reviewer()
    agent.joined.instrument = InstrumentationSettings(tracer_provider=own)  # type: ignore[attr-defined]
    async with AgentTestClient(agent) as client:
        await client.send(Diff(text="+ x"), session_id="session-7")
    assert "chat" not in spans_of(exporter)
    chats = [one for one in kept.get_finished_spans() if told(one).get("gen_ai.operation.name") == "chat"]
    assert len(chats) == 2 and {told(one)["gen_ai.conversation.id"] for one in chats} == {"session-7"}


async def test_only_own_handlers_are_work_and_a_failure_is_told_by_type(exporter: InMemorySpanExporter) -> None:
    agent = Agent("desk", role="desk", swarm="agents")

    @agent.on(Diff)
    async def take(content: Diff, ctx: HandlerContext) -> None:
        if content.text == "no":
            raise Reject("not mine")
        if content.text == "broken":
            raise ValueError(SECRET)

    async with AgentTestClient(agent) as client:
        await client.send(Diff(text="yes"))
        await client.send(Diff(text="no"))
        with pytest.raises(Exception, match="ValueError"):
            await client.send(Diff(text="broken"))
    fine, refused, broken = spans_of(exporter)["invoke_agent"]
    assert fine.status.status_code is refused.status.status_code is StatusCode.UNSET
    assert broken.status.status_code is StatusCode.ERROR and told(broken)["error.type"] == "ValueError"
    assert SECRET not in broken.to_json()


async def test_a_handler_that_begins_again_with_its_state_ran_once(exporter: InMemorySpanExporter) -> None:
    """The first look at the state of a session ends a run that had not read it: viewers would show an empty turn."""
    agent, runs = Agent("desk", role="desk", swarm="agents"), []

    @agent.on(Diff)
    async def take(content: Diff, ctx: HandlerContext) -> None:
        runs.append(content.text)
        if content.text == "second":
            ctx.state["seen"] = content.text

    async with AgentTestClient(agent) as client:
        await client.send(Diff(text="first"))
        await client.send(Diff(text="second"))
    assert runs == ["first", "second", "second"] and len(spans_of(exporter)["invoke_agent"]) == 2


async def test_tools_of_an_llm_agent_make_spans(exporter: InMemorySpanExporter, workshop: Workshop) -> None:
    run = response(tool("note", params={"value": SECRET}), tool("fail", params={}))
    await ActionExecutor(workshop.tools).run(run, context=in_context())
    note, fail = sorted(spans_of(exporter)["execute_tool"], key=lambda span: span.name, reverse=True)
    assert (note.name, bool(told(note)["gen_ai.tool.call.id"])) == ("execute_tool note", True)
    assert told(note)["gen_ai.conversation.id"] == "session-1"
    assert fail.status.status_code is StatusCode.ERROR and SECRET not in note.to_json()

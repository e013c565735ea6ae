"""One trace from sender to the answer's handler, over a real broker; and what is handed on while tracing is off."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.integration.conftest import House
from tests.support.traffic import AGENTS, make_idea, make_packet, until
from tests.support.traffic.packets import ROLE

from apc_agents import Agent, HandlerContext, Worker, WorkerSettings
from apc_bus.telemetry import SpanKind, headers_of, start_span, use_tracer_provider
from apc_contracts import IdeaPayload, Packet, PacketType

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
HANDED_ON = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01", "tracestate": "vendor=1"}


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    """Spans of this process, as they end."""
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    use_tracer_provider(provider)
    yield memory
    use_tracer_provider(None)


@asynccontextmanager
async def worker(house: House, agent: Agent, **settings: Any) -> AsyncIterator[None]:
    """An agent of the cast at work; leaving drains it."""
    bus = await house.connect(agent.agent_id)
    stop = asyncio.Event()
    one = Worker(agent, bus, settings=WorkerSettings(shards=1, database_url=None, **settings))
    task = asyncio.create_task(one.run(stop))
    await one.ready.wait()
    try:
        yield
    finally:
        stop.set()
        await task
        await bus.close()


def span_named(spans: tuple[ReadableSpan, ...], name: str, agent: str) -> ReadableSpan:
    """Return the span of a packet that this agent has sent."""
    (found,) = [one for one in spans if one.name == name and (one.attributes or {}).get("apc.sender") == agent]
    return found


def ids(spans: tuple[ReadableSpan, ...], name: str) -> set[int]:
    """Return the span ids of all spans of a name."""
    return {span.context.span_id for span in spans if span.name == name}


def linked(spans: tuple[ReadableSpan, ...], name: str) -> list[int]:
    """Return what the spans of a name link to."""
    return [link.context.span_id for span in spans if span.name == name for link in span.links]


async def test_one_trace_from_the_sender_to_the_handler_of_the_answer(
    running: House, exporter: InMemorySpanExporter
) -> None:
    answerer = Agent("blue-1", role=ROLE, swarm=AGENTS["blue-1"][0])
    asker = Agent("red-1", role=ROLE, swarm=AGENTS["red-1"][0])
    answered = asyncio.Event()

    @answerer.on(PacketType.IDEA)
    async def answer(packet: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        return make_idea()

    @asker.on(PacketType.IDEA)
    async def take(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        answered.set()
        raise ValueError("the secret words of a body")

    async with worker(running, answerer), worker(running, asker):
        sent = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
        root = start_span("the sender's own", SpanKind.PRODUCER)
        assert root is not None
        await running.agents.publish(sent, headers=headers_of(root))
        root.end()
        async with asyncio.timeout(20):
            await answered.wait()
        await until(running.has_come_to("ARCHIVED", sent.packet_id, "blue-1"))
    await until(running.has_nothing_open)
    spans = exporter.get_finished_spans()

    path = [
        next(span for span in spans if span.name == "the sender's own"),
        span_named(spans, "judge IDEA", "red-1"),
        span_named(spans, "process IDEA", "red-1"),
        span_named(spans, "send IDEA", "blue-1"),
        span_named(spans, "judge IDEA", "blue-1"),
        span_named(spans, "process IDEA", "blue-1"),
    ]
    assert len({span.context.trace_id for span in path}) == 1
    for before, after in itertools.pairwise(path):
        assert after.parent is not None and after.parent.span_id == before.context.span_id, after.name
    assert (path[1].attributes or {})["apc.verdict"] == "accepted"
    failed = path[-1]
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ValueError"
    assert "secret words" not in failed.to_json()


async def test_a_log_batch_links_to_its_packets_and_a_transaction_to_its_batches(
    house: House, exporter: InMemorySpanExporter
) -> None:
    async with house.persister(), house.gate():
        await house.open_session()
        exporter.clear()
        packets = [make_packet("red-1", make_idea(), ("sentinel",), parent=house.opening) for _ in range(60)]
        await house.agents.publish(*packets)
        await until(house.is_logged(*(packet.packet_id for packet in packets)))
    spans = exporter.get_finished_spans()

    judged = ids(spans, "judge IDEA")
    assert len(judged) == 60
    links = [one for one in linked(spans, "log batch") if one in judged]
    assert sorted(links) == sorted(judged), "each packet is in one log batch"
    assert max(len(span.links) for span in spans if span.name == "log batch") > 1, "fan-in"
    batches = linked(spans, "commit log batches")
    assert ids(spans, "log batch") <= set(batches)
    assert len(batches) == len(set(batches))


async def test_while_tracing_is_off_the_sender_s_context_is_handed_on(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    refused = make_packet("red-1", make_idea(), ("nobody",), parent=running.opening)
    await running.agents.publish(sent, refused, headers=HANDED_ON)
    (delivery,) = await running.agents.receive("sentinel")
    (nack,) = await running.agents.receive("red-1", urgent=True)
    for message in (delivery.message, nack.message):
        assert {name: message.headers.get(name) for name in HANDED_ON} == HANDED_ON

    answerer = Agent("blue-1", role=ROLE, swarm=AGENTS["blue-1"][0])

    @answerer.on(PacketType.IDEA)
    async def answer(packet: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        return make_idea()

    async with worker(running, answerer):
        asked = make_packet("red-1", make_idea(), ("blue-1",), parent=running.opening)
        await running.agents.publish(asked, headers=HANDED_ON)
        (reply,) = await running.agents.receive("red-1")
    assert reply.message.headers["traceparent"] == HANDED_ON["traceparent"]


@pytest.mark.parametrize(
    "given",
    [
        {"traceparent": "nonsense"},
        {"traceparent": f"00-{'0' * 32}-b7ad6b7169203331-01"},
        {"traceparent": 7},
        {"traceparent": HANDED_ON["traceparent"], "tracestate": "x=" + 600 * "y"},
        {},
    ],
)
async def test_what_is_no_trace_context_is_not_handed_on(running: House, given: dict[str, Any]) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(sent, headers=given)
    (delivery,) = await running.agents.receive("sentinel")
    found = delivery.message.headers
    assert found.get("traceparent") == (HANDED_ON["traceparent"] if "tracestate" in given else None)
    assert "tracestate" not in found

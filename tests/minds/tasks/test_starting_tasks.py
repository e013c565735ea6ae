"""How a handler's response starts its ASYNC actions, and whom they are told to."""

import asyncio
from typing import Any

from pydantic import JsonValue
from tests.minds.tasks.test_tasks_in_a_worker import has_ended
from tests.minds.workshop import CLEARANCE, Workshop, response, tool
from tests.support.waiting import until

from apc_agents import Agent, AgentTestClient, EmitUnconfirmed, HandlerContext
from apc_contracts import AgentResponse, Channel, Packet, PacketType, Signal, SignalPayload
from apc_contracts.payloads.by_type import SignalFields
from apc_minds.actions import (
    ActionContext,
    ActionExecutor,
    ActionReport,
    ObservationStatus,
    ToolCall,
    ToolRegistry,
)


class Foreman:
    """An agent that carries out an answer for each QUERY of somebody else."""

    def __init__(self, tools: ToolRegistry, *answers: AgentResponse) -> None:
        self.agent = Agent("builder-1", role="builder", swarm="linear", tools=tools, clearance=CLEARANCE)
        self.reports: list[ActionReport] = []
        self.told: list[JsonValue] = []
        executor = ActionExecutor(tools)

        @self.agent.on(PacketType.SIGNAL)
        async def act(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
            if signal.channel is Channel.INTRA_AGENT:
                self.told.append((signal.metadata or {})["task"])
                return
            for answer in answers:
                self.reports.append(await executor.run(answer, context=ActionContext.of(ctx)))


async def test_an_asynchronous_action_starts_at_once_and_is_told_of(workshop: Workshop) -> None:
    go_on = asyncio.Event()

    @workshop.tools.tool()
    async def build(call: ToolCall) -> JsonValue:
        await go_on.wait()
        await call.progress(0.5, "linking")
        return {"file": "app"}

    foreman = Foreman(
        workshop.tools,
        response(
            tool("build", execution="ASYNC", action_id="build", display="building"),
            tool("note", execution="ASYNC", params={"value": "built ${{results.build.file}} for ${{variables.who}}"}),
            tool("note", params={"value": "now"}),
            context={"variables": {"who": "you"}},
        ),
    )
    async with AgentTestClient(foreman.agent) as client:
        await client.send(SignalPayload(signal=Signal.QUERY))
        (report,) = foreman.reports
        build_id, note_id = report.task_ids.values()
        assert [one.status for one in report.observations] == [
            ObservationStatus.TASK_STARTED,
            ObservationStatus.TASK_STARTED,
            ObservationStatus.SUCCESS,
        ]
        assert (report.status, report.response.status) == ("TASK_STARTED", "TASK_STARTED")
        assert [action.task_id for action in report.response.actions] == [build_id, note_id, None]
        assert workshop.calls == ["now"]
        go_on.set()
        await until(has_ended(client.tasks, build_id, note_id))

        async def is_told() -> bool:
            return len(foreman.told) == 7

        await until(is_told)
        await client.settled()
    assert workshop.calls == ["now", "built app for you"]
    packets = [packet for packet in client.emitted if packet.channel is Channel.INTRA_AGENT]
    assert [packet.metadata["task"] for packet in packets if packet.metadata] == foreman.told
    assert {packet.payload_as(SignalFields).signal for packet in packets} == {Signal.QUERY}
    assert {packet.trace.task_id for packet in packets} == {"task-1"}
    assert all(packet.trace.parent_packet_id is not None for packet in packets)
    told: list[Any] = foreman.told
    assert [(one["status"], one["progress"], one.get("note")) for one in told if one["task_id"] == build_id] == [
        ("PENDING", 0.0, None),
        ("RUNNING", 0.0, None),
        ("RUNNING", 0.5, "linking"),
        ("SUCCEEDED", 1.0, "linking"),
    ]


async def test_a_handler_that_runs_again_finds_its_task(workshop: Workshop) -> None:
    runs: list[int] = []
    foreman = Foreman(workshop.tools, response(tool("note", execution="ASYNC", params={"value": 1})))

    @foreman.agent.on(PacketType.SIGNAL, signal=Signal.RETRY)
    async def again(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
        answer = response(tool("note", execution="ASYNC", params={"value": f"run {len(runs)}"}))
        report = await ActionExecutor(workshop.tools).run(answer, context=ActionContext.of(ctx))
        foreman.reports.append(report)
        runs.append(1)
        if len(runs) == 1:
            raise EmitUnconfirmed("id", "the broker was away")

    async with AgentTestClient(foreman.agent) as client:
        await client.send(SignalPayload(signal=Signal.RETRY))
        first, second = foreman.reports
        assert first.task_ids == second.task_ids
        await until(has_ended(client.tasks, *first.task_ids.values()))
    assert workshop.calls == ["run 0"]


async def test_others_can_be_told_of_a_task(workshop: Workshop) -> None:
    foreman = Foreman(workshop.tools)
    executor = ActionExecutor(workshop.tools)

    @foreman.agent.on(PacketType.SIGNAL, signal=Signal.RETRY)
    async def start(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
        context = ActionContext.of(ctx, announce_to=("sentinel-1", "librarian-1"))
        await executor.run(response(tool("note", execution="ASYNC")), context=context)

    async with AgentTestClient(foreman.agent) as client:
        await client.send(SignalPayload(signal=Signal.RETRY))

        async def is_told() -> bool:
            return len(client.emitted) == 3

        await until(is_told)
    assert {packet.channel for packet in client.emitted} == {Channel.INTER_AGENT}
    assert {one.agent_id for packet in client.emitted for one in packet.recipients} == {"sentinel-1", "librarian-1"}

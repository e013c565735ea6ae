"""What the verbs of actions do: they remember, forget and emit."""

from typing import Any

from tests.minds.actions.test_executor import refused, run
from tests.minds.workshop import CLEARANCE, Workshop, internal, response, tool

from apc_agents import Agent, AgentTestClient, HandlerContext
from apc_contracts import (
    ErrorPayload,
    Packet,
    PacketType,
    Signal,
    SignalPayload,
)
from apc_minds.actions import (
    ActionContext,
    ActionExecutor,
    ActionReport,
    ToolCall,
)


async def test_what_is_emitted_may_carry_its_evidence(workshop: Workshop) -> None:
    agent = Agent("builder-1", role="builder", swarm="linear")
    evidence = "sha256:" + "0" * 64
    bundle = {"evidence_refs": [evidence], "falsifiers": [FALSIFIER]}
    claim = {"packet_type": "CLAIM", "payload": CLAIM, "proof_bundle": bundle}
    reports: list[ActionReport] = []

    @agent.on(PacketType.SIGNAL)
    async def act(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
        executor = ActionExecutor(workshop.tools)
        reports.append(await executor.run(response(internal("emit", params=claim)), context=ActionContext.of(ctx)))

    async with AgentTestClient(agent) as client:
        reply = await client.send(SignalPayload(signal=Signal.QUERY))
    assert reply is not None and reply.proof_bundle is not None, reports[0].observations
    assert reply.proof_bundle.evidence_refs == (evidence,)
    strange = {**claim, "proof_bundle": {"evidence": []}}
    ((path, _),) = await refused(workshop, response(internal("emit", params=strange)))
    assert path == "actions[0].params.proof_bundle.evidence"


async def test_verbs_that_reach_nothing_fail(workshop: Workshop) -> None:
    answer = response(
        internal("remember", params={"key": "a", "value": 1}),
        internal("emit", params={"packet_type": "SIGNAL", "payload": {"signal": "QUERY"}}),
    )
    errors = [one.error for one in (await run(workshop, answer)).observations]
    assert [str(error).split(":")[1] for error in errors] == [
        " this agent remembers nothing",
        " there is no current packet",
    ]


CLAIM = {"claim_id": "c", "hypothesis_id": "h", "text": "it holds", "confidence_pre": 0.5, "confidence_post": 0.9}


FALSIFIER = {
    "id": "f",
    "target_claim_id": "c",
    "test": "measure it",
    "fail_if": "it differs",
    "cost": "low",
}


TROUBLE = {"error_code": "NO_DISK", "message": "disk full", "retryable": False}


async def test_verbs_in_a_handler_remember_forget_and_emit(workshop: Workshop) -> None:
    agent = Agent("builder-1", role="builder", swarm="linear", clearance=CLEARANCE)
    executor = ActionExecutor(workshop.tools)
    keys: list[Any] = []

    @workshop.tools.tool()
    async def key(call: ToolCall) -> None:
        keys.append(call.key)

    answers = [
        response(
            internal("remember", params={"key": "a", "value": {"n": 1}}),
            internal("remember", params={"key": "b", "value": None}),
            internal("emit", params={"packet_type": "SIGNAL", "payload": {"signal": "QUERY"}, "to": ["sentinel-1"]}),
            internal("emit", params={"packet_type": "ERROR", "payload": TROUBLE}),
            internal("emit", params={"packet_type": "CLAIM", "payload": {**CLAIM, "text": 1}}),
            internal("emit", params={"packet_type": "CLAIM", "payload": CLAIM}),
            tool("key"),
        ),
        response(internal("forget", params={"key": "b"}), internal("forget", params={"key": "c"}), tool("key")),
    ]
    reports: list[ActionReport] = []

    @agent.on(PacketType.SIGNAL)
    async def act(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
        reports.extend([await executor.run(one, context=ActionContext.of(ctx)) for one in answers])

    async with AgentTestClient(agent) as client:
        await client.send(SignalPayload(signal=Signal.QUERY))
        assert await client.state() == {"remembered": {"a": {"n": 1}}}
        await client.settled()
    query, trouble = client.emitted
    assert [one.agent_id for one in query.recipients] == ["sentinel-1"]
    assert trouble.payload == ErrorPayload(error_code="NO_DISK", message="disk full", retryable=False)
    assert reports[0].results["action_4"] == {"packet_id": str(trouble.packet_id)}
    errors = [str(one.error) for one in reports[0].observations[4:6]]
    assert "payload of CLAIM, text: must be a string" in errors[0]
    assert "PROOF_REQUIRED" in errors[1]
    assert reports[1].results == {"action_1": True, "action_2": False, "action_3": None}
    assert len(set(keys)) == 2

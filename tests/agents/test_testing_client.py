"""The agent under test, as its author sees it: what handlers may do and what comes of it."""

from datetime import timedelta

import pytest
from tests.agents.conftest import MakeIdea

from apc_agents import (
    Agent,
    AgentError,
    AgentInvalid,
    AgentTestClient,
    EmitRefused,
    HandlerContext,
    HandlerFailed,
    Reject,
    Retry,
    StateInvalid,
)
from apc_contracts import (
    AckPayload,
    AckStatus,
    ClaimPayload,
    DeliveryMode,
    ErrorPayload,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    ProofBundle,
    ReceiptKind,
    RunPhase,
    Signal,
    SignalPayload,
    reply_id,
)

PROOF = ProofBundle(evidence_refs=("log://1",))


def claim(text: str = "seen") -> ClaimPayload:
    return ClaimPayload(claim_id="c-1", hypothesis_id="h-1", text=text, confidence_pre=0.5, confidence_post=0.6)


@pytest.fixture
def agent() -> Agent:
    return Agent("sentinel-1", role="sentinel", swarm="hybrid")


async def test_an_emitted_reply_inherits_everything_from_its_cause(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(claim(idea.payload.method_id), confidence=0.8, proof_bundle=PROOF)

    async with AgentTestClient(agent) as client:
        reply = await client.send(
            idea("m-7"), sender="builder-9", phase=RunPhase.REFINEMENT, generation=12, step=41, run_id="run-9"
        )
    assert reply is not None
    (root,) = {packet.trace.root_packet_id for packet in client.emitted}
    assert reply.payload_as(ClaimPayload).text == "m-7"
    assert reply.packet_id == reply_id(root, "sentinel-1", 0)
    assert reply.trace.parent_packet_id == root
    assert (reply.trace.session_id, reply.trace.run_id, reply.trace.task_id) == ("session-1", "run-9", "task-1")
    assert (reply.run_phase, reply.trace.generation, reply.trace.step) == (RunPhase.REFINEMENT, 12, 41)
    assert [recipient.agent_id for recipient in reply.recipients] == ["builder-9"]
    assert reply.routing.delivery_mode is DeliveryMode.DIRECT
    assert (reply.sender.agent_id, reply.sender.role, reply.sender.swarm_id) == ("sentinel-1", "sentinel", "hybrid")
    assert dict(reply.trace.vector_clock or {}) == {"builder-9": 1, "sentinel-1": 1}


async def test_a_receipt_batch_tells_the_three_steps(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.add_usage(tokens=30, cost=0.5)
        ctx.add_usage(tokens=4)

    async with AgentTestClient(agent) as client:
        assert await client.send(idea()) is None
        kinds = [receipt.kind for receipt in client.receipts]
        assert kinds == [ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME]
        usage = client.receipts[-1].usage
        assert usage is not None and (usage.tokens, usage.cost) == (34, 0.5)


async def test_returned_payloads_are_emitted_in_order(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> list[IdeaPayload]:
        return [idea.payload, idea.payload.model_copy(update={"method_id": "second"})]

    async with AgentTestClient(agent) as client:
        await client.send(idea("first"))
        assert [packet.payload_as(IdeaPayload).method_id for packet in client.emitted] == ["first", "second"]


async def test_what_admit_refuses_is_refused_at_once(agent: Agent, idea: MakeIdea) -> None:
    seen: list[EmitRefused] = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        for given in ({}, {"proof_bundle": PROOF, "confidence": 3.0}, {"proof_bundle": PROOF, "ttl": timedelta(0)}):
            with pytest.raises(EmitRefused) as refused:
                await ctx.emit(claim(), **given)  # type: ignore[call-overload]  # one bad argument each
            seen.append(refused.value)

    async with AgentTestClient(agent) as client:
        assert await client.send(idea()) is None
        with pytest.raises(EmitRefused, match="PHASE_FORBIDS_TYPE"):
            await client.send(idea(), phase=RunPhase.EXECUTION)
    assert [(error.code, error.path) for error in seen] == [
        ("PROOF_REQUIRED", "proof_bundle"),
        ("SCHEMA_INVALID", "confidence"),
        ("SCHEMA_INVALID", "ttl_ms"),
    ]


async def test_a_handler_that_raises_fails_the_test_and_tells_the_sender(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state["half"] = "done"
        raise ZeroDivisionError("no model")

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.send(idea(), sender="builder-3")
        assert isinstance(failed.value.__cause__, ZeroDivisionError)
        assert await client.state() == {}
    (error,) = client.emitted
    assert isinstance(error.payload, ErrorPayload)
    assert (error.payload.error_code, error.payload.message) == ("HANDLER_ERROR", "ZeroDivisionError: no model")
    assert error.recipients[0].agent_id == "builder-3"


async def test_an_error_is_not_answered_by_an_error(agent: Agent) -> None:
    @agent.on(PacketType.ERROR)
    async def failed(error: Packet[ErrorPayload], ctx: HandlerContext) -> None:
        raise ValueError

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed):
            await client.send(ErrorPayload(error_code="X", message="x", retryable=False))
    assert client.emitted == []


async def test_reject_sends_a_nack(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        raise Reject("not my field")

    async with AgentTestClient(agent) as client:
        nack = await client.send(idea())
        assert nack is not None and isinstance(nack.payload, NackPayload)
        assert (nack.payload.ack_status, nack.payload.reason) == (AckStatus.REJECTED, "not my field")
        assert client.receipts[-1].kind is ReceiptKind.REJECT
        assert client.receipts[-1].error == "not my field"


async def test_a_type_without_handler_is_rejected(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...

    async with AgentTestClient(agent) as client:
        with pytest.raises(AgentError, match="does not take CLAIM"):
            await client.send(claim(), proof_bundle=PROOF)


async def test_retry_asks_the_gate_and_forgets_the_state(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state["tries"] = ctx.state.get("tries", 0) + 1
        raise Retry(after=timedelta(seconds=1), reason="model is loading")

    async with AgentTestClient(agent) as client:
        assert await client.send(idea()) is None
        assert client.receipts[-1].kind is ReceiptKind.RETRY
        assert client.receipts[-1].error == "model is loading"
        assert client.receipts[-1].after_ms == 1_000
        assert await client.state() == {}


@pytest.mark.parametrize("retries", [-1, 11])
def test_retries_out_of_range_are_refused_when_the_agent_is_built(agent: Agent, retries: int) -> None:
    with pytest.raises(AgentInvalid, match=r"outside 0\.\.10"):

        @agent.on(PacketType.IDEA, retries=retries)
        async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...


def test_a_retry_before_now_is_refused_where_it_is_made() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        Retry(after=timedelta(seconds=-1))


async def test_an_ack_is_sent_when_it_is_asked_for(agent: Agent, idea: MakeIdea) -> None:
    answers_itself = False

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> AckPayload | None:
        if answers_itself:
            return AckPayload(acked_packet_id=idea.packet_id, ack_status=AckStatus.DEFERRED)
        return None

    async with AgentTestClient(agent) as client:
        first = await client.send(idea(), requires_ack=True)
        answers_itself = True
        second = await client.send(idea(), requires_ack=True)
        assert first is not None and first.payload_as(AckPayload).ack_status is AckStatus.ACCEPTED
        assert second is not None and second.payload_as(AckPayload).ack_status is AckStatus.DEFERRED
        assert len(client.emitted) == 2


async def test_the_state_stays_from_packet_to_packet_and_by_session(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state.setdefault("methods", []).append(idea.payload.method_id)

    async with AgentTestClient(agent) as client:
        for name, session in (("a", "session-1"), ("b", "session-2"), ("c", "session-1")):
            await client.send(idea(name), session_id=session)
        assert await client.state("session-1") == {"methods": ["a", "c"]}
        assert await client.state("session-2") == {"methods": ["b"]}


async def test_a_state_that_is_not_json_fails_the_handler(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state["agent"] = agent

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as failed:
            await client.send(idea())
        assert isinstance(failed.value.__cause__, StateInvalid)


async def test_artifacts_are_available(agent: Agent, idea: MakeIdea) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state["hash"] = await ctx.artifacts.put(b"model")

    async with AgentTestClient(agent) as client:
        await client.send(idea())
        assert await client.artifacts.get((await client.state())["hash"]) == b"model"


async def test_on_start_emits_root_packets(agent: Agent, idea: MakeIdea) -> None:
    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        with pytest.raises(AgentError, match="no packet"):
            _ = ctx.session_id
        with pytest.raises(EmitRefused, match="say to whom"):
            await ctx.emit(idea(), session_id="s-9")
        ctx.state["starts"] = ctx.state.get("starts", 0) + 1
        await ctx.emit(SignalPayload(signal=Signal.QUERY), to="orchestrator", session_id="s-9", run_id="r-9")

    async with AgentTestClient(agent) as client:
        (start,) = client.emitted
        assert (start.trace.session_id, start.trace.run_id, start.trace.task_id) == ("s-9", "r-9", "r-9")
        assert start.trace.root_packet_id == start.packet_id
        assert start.packet_id.version == 7
        assert await client.state("_presence") == {"starts": 1}


async def test_what_on_start_raises_fails_the_client(agent: Agent) -> None:
    @agent.on_start
    async def begin(ctx: HandlerContext) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        async with AgentTestClient(agent):
            raise AssertionError("unreachable")


async def test_what_is_sent_carries_all_that_a_packet_can(agent: Agent, idea: MakeIdea) -> None:
    seen: list[Packet] = []

    @agent.on(PacketType.IDEA)
    async def review(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        seen.append(idea)

    async with AgentTestClient(agent) as client:
        await client.send(
            idea(),
            symbolic_keys=("calibration",),
            capability_tags=("drift",),
            retry_limit=2,
            ack_timeout=timedelta(seconds=5),
            metadata={"note": "by hand"},
        )

    packet = seen[0]
    assert packet.symbolic_keys == ("calibration",)
    assert packet.capability_tags == ("drift",)
    assert (packet.routing.retry_limit, packet.routing.ack_timeout_ms) == (2, 5000)
    assert packet.metadata == {"note": "by hand"}

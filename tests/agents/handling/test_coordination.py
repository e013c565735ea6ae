"""The machine intra_agent_coordination: driven by the SDK, one instance per handler invocation."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agents.conftest import MakeIdea, MakePacket, StageMaker

from apc_agents import Agent, AgentError, AgentTestClient, EmitRefused, EmitTimeout, HandlerContext, HandlerFailed
from apc_agents.emission import LocalCoordination, LocalTransition
from apc_bus.topology import AgentQueues, agent_queue, build_topology, intra_exchange
from apc_contracts import AckPayload, Channel, ClaimPayload, IdeaPayload, Packet, PacketType, load_contract
from apc_contracts.agent import INTRA_AGENT_MACHINE

MACHINE = load_contract().machine(INTRA_AGENT_MACHINE)
LAP = (
    "task_assigned",
    "context_complete",
    "idea_packet_ready",
    "critique_pass",
    "artifact_local_ready",
    "local_checks_pass",
    "packet_emitted",
    "ack_accepted",
)
UNPROVEN = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.5)
"""The local admit() refuses it: a CLAIM needs a proof bundle."""


def events(transitions: tuple[LocalTransition, ...] | list[LocalTransition]) -> tuple[str, ...]:
    return tuple(one.event for one in transitions)


def make_agent(handler: Any) -> Agent:
    agent = Agent("sentinel-1", role="sentinel", swarm="hybrid")

    async def review(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await handler(packet, ctx)

    agent.on(PacketType.IDEA)(review)
    return agent


async def run(handler: Any, payload: IdeaPayload, **options: Any) -> list[tuple[LocalTransition, ...]]:
    """Return the steps of every run of the handler of one packet."""
    async with AgentTestClient(make_agent(handler)) as client:
        try:
            await client.send(payload, **options)
        except HandlerFailed as failed:
            if "planned" not in str(failed.__cause__):
                raise
        await client.settled()
        return [steps for runs in client.invocations.values() for steps in runs]


async def test_an_emission_walks_from_the_task_back_to_idle(idea: MakeIdea) -> None:
    states: list[str] = []

    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        states.append(ctx.local_state)
        await ctx.emit(packet.payload)
        states.append(ctx.local_state)

    (steps,) = await run(handler, idea())
    assert states == ["LOCAL_IDLE", "LOCAL_IDLE"]
    assert events(steps) == LAP
    assert MACHINE.walk(events(steps)) == ("LOCAL_IDLE", *(one.to_state for one in steps))


async def test_every_emission_is_a_lap(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await ctx.emit(packet.payload)
        await ctx.emit(packet.payload)

    (steps,) = await run(handler, idea())
    assert events(steps) == LAP + LAP


async def test_an_emission_beside_another_is_not_followed(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        await asyncio.gather(ctx.emit(packet.payload), ctx.emit(packet.payload))

    (steps,) = await run(handler, idea())
    assert events(steps) == LAP


async def test_a_handler_that_emits_nothing_has_no_instance(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        assert ctx.local_transitions == ()

    assert await run(handler, idea(), requires_ack=True) == [], "the ACK of the SDK is no emission of the handler"


async def test_what_the_local_admit_refuses_goes_back_to_synthesis(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        with pytest.raises(EmitRefused):
            await ctx.emit(UNPROVEN)
        assert ctx.local_state == "IDEA_SYNTHESIS"
        await ctx.emit(packet.payload)

    (steps,) = await run(handler, idea())
    assert events(steps) == (*LAP[:3], "critique_fail", *LAP[2:])


async def test_a_handler_judges_for_itself(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.critique_fail("too costly")
        ctx.local_checks_fail("does not converge")
        await ctx.emit(packet.payload)

    (steps,) = await run(handler, idea())
    own = ("critique_fail", "idea_packet_ready", "critique_pass", "artifact_local_ready", "local_checks_fail")
    assert events(steps) == (*LAP[:3], *own, *LAP[2:])
    assert [one.reason for one in steps if one.reason] == ["too costly", "does not converge"]


async def test_nothing_is_judged_in_the_middle_of_an_emission(idea: MakeIdea) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        emitting = asyncio.create_task(ctx.emit(packet.payload))
        await asyncio.sleep(0)
        with pytest.raises(AgentError, match="await the emit first"):
            ctx.critique_fail("too late")
        await emitting

    (steps,) = await run(handler, idea())
    assert events(steps) == LAP


@pytest.mark.parametrize("emits", [True, False])
async def test_an_error_halts_the_invocation(idea: MakeIdea, emits: bool) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        if emits:
            await ctx.emit(packet.payload)
        raise ValueError("planned")

    steps = await run(handler, idea())
    assert [events(one) for one in steps] == ([(*LAP, "cancel_or_error")] if emits else [])
    assert all(one[-1].to_state == "LOCAL_HALT" for one in steps)


async def test_the_ack_is_waited_for_where_one_is_required(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    seen: list[tuple[str, ...]] = []

    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        with pytest.raises(EmitTimeout):
            await ctx.emit(packet.payload, to="b-1", requires_ack=True, ack_timeout=timedelta(milliseconds=5))
        await ctx.emit(packet.payload, to="b-1", requires_ack=True)
        seen.append(events(ctx.local_transitions))

    gate = await (await make_stage(make_agent(handler))).start()
    packet = make_packet(idea())
    await gate.deliver(packet)
    await gate.until(lambda: len(gate.packets) == 2)
    ack = AckPayload(acked_packet_id=gate.packets[1].packet_id, ack_status="ACCEPTED")
    await gate.deliver(make_packet(ack, sender="b-1", parent=gate.packets[1]))
    await gate.ended(packet)
    assert seen == [(*LAP[:-1], "ack_rejected_or_deferred", *LAP[2:])]


async def test_replicas_of_an_agent_share_what_its_modules_say(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    seen: list[tuple[Channel, str]] = []
    is_done = asyncio.Event()

    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        seen.append((packet.channel, packet.payload.method_id))
        if packet.channel is Channel.INTRA_AGENT:
            is_done.set()
        else:
            inner = packet.payload.model_copy(update={"method_id": "inner"})
            await ctx.emit(inner, to="sentinel-1", channel=Channel.INTRA_AGENT)

    stage = await make_stage(make_agent(handler), worker_intra="replicas")
    gate = await stage.start()
    packet = make_packet(idea("outer"))
    await gate.deliver(packet)
    await gate.ended(packet)
    async with asyncio.timeout(10):
        await is_done.wait()
    assert seen == [(Channel.INTER_AGENT, "outer"), (Channel.INTRA_AGENT, "inner")]
    (inner,) = gate.packets
    assert gate.kinds(inner) == []


async def test_a_stranger_cannot_speak_inside_an_agent(
    make_stage: StageMaker, make_packet: MakePacket, idea: MakeIdea
) -> None:
    heard: list[str] = []

    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        heard.append(packet.payload.method_id)

    gate = await (await make_stage(make_agent(handler))).start()
    forged = make_packet(idea("forged"), sender="mallory").model_copy(update={"channel": Channel.INTRA_AGENT})
    await gate.send_bytes(forged, forged.model_dump_json(exclude_none=True).encode(), {})
    honest = make_packet(idea("honest"))
    await gate.deliver(honest)
    await gate.ended(honest)
    assert heard == ["honest"]
    assert await gate.dead_letters() == 1


def test_the_own_exchange_reaches_the_own_queues_only() -> None:
    topology = build_topology(1, [AgentQueues("sentinel-1", "s"), AgentQueues("other", "s")])
    reached = {one.queue for one in topology.bindings if one.exchange == intra_exchange("sentinel-1")}
    assert reached == {agent_queue("sentinel-1", urgent) for urgent in (True, False)}


@given(st.lists(st.sampled_from(["emit", "refused", "lost", "critique", "checks", "error"])))
def test_any_handler_walks_the_machine_of_the_contract(acts: list[str]) -> None:
    """Whatever a handler does, every step is an edge, and steps follow each other within an instance."""
    coordination = LocalCoordination(MACHINE)
    for act in acts:
        match act:
            case "critique":
                coordination.critique_fail("no")
            case "checks":
                coordination.local_checks_fail("no")
            case "error":
                coordination.halt()
            case _:
                emit(coordination, act)
    state = MACHINE.initial
    for step in coordination.transitions:
        assert step.from_state in (state, MACHINE.initial if state in MACHINE.terminal else state)
        assert MACHINE.step(step.from_state, step.event) == step.to_state
        state = step.to_state
    assert coordination.state == state


def emit(coordination: LocalCoordination, act: str) -> None:
    with coordination.emission() as emission:
        emission.criticised(act != "refused")
        if act == "refused":
            return
        emission.built()
        if act == "lost":
            return
        emission.published()
        emission.answered(True)

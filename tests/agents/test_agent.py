"""An agent that cannot work is refused when it is built, with a sentence that says how to mend it."""

from typing import Any

import pytest
from tests.agents.conftest import MakePacket

from apc_agents import Agent, AgentInvalid, HandlerContext
from apc_contracts import (
    ClaimPayload,
    EvalPayload,
    IdeaPacket,
    IdeaPayload,
    NackPayload,
    Packet,
    PacketType,
    Right,
    Signal,
    SignalPayload,
)


@pytest.fixture
def agent() -> Agent:
    return Agent("sentinel-1", role="sentinel", swarm="hybrid", rights=("veto",))


def test_handlers_of_every_allowed_form(agent: Agent) -> None:
    @agent.on(PacketType.IDEA)
    async def idea(idea: Packet[IdeaPayload], ctx: HandlerContext) -> ClaimPayload | None: ...

    @agent.on(PacketType.CLAIM)
    async def claim(claim, ctx):  # type: ignore[no-untyped-def]  # an agent may be written without annotations
        return None

    @agent.on(PacketType.EVAL)
    async def evaluation(packet: Packet, ctx: HandlerContext) -> list[ClaimPayload]:
        return []

    @agent.on(PacketType.ARTIFACT)
    @agent.on(PacketType.TRANSFER)
    async def several(packet: Packet, ctx: HandlerContext) -> tuple[ClaimPayload, ...] | None: ...

    assert agent.handles == {
        PacketType.IDEA,
        PacketType.CLAIM,
        PacketType.EVAL,
        PacketType.ARTIFACT,
        PacketType.TRANSFER,
    }


def test_a_concrete_packet_class_is_an_annotation_too(agent: Agent) -> None:
    @agent.on(PacketType.IDEA)
    async def review(idea: IdeaPacket, ctx: HandlerContext) -> None: ...

    with pytest.raises(AgentInvalid, match=r"registered for CLAIM but takes .*Packet\[ClaimPayload\]"):

        @agent.on(PacketType.CLAIM)
        async def wrong(idea: IdeaPacket, ctx: HandlerContext) -> None: ...


def test_signal_handlers_are_told_apart_by_signal(agent: Agent, make_packet: MakePacket) -> None:
    @agent.on(PacketType.SIGNAL, signal=Signal.SYNC)
    async def sync(packet: Packet[SignalPayload], ctx: HandlerContext) -> None: ...

    @agent.on(PacketType.SIGNAL)
    async def other(packet: Packet[SignalPayload], ctx: HandlerContext) -> None: ...

    assert agent.handler_for(make_packet(SignalPayload(signal=Signal.SYNC))) is sync
    assert agent.handler_for(make_packet(SignalPayload(signal=Signal.STOP))) is other


def test_registration_says_what_the_operator_enters(agent: Agent) -> None:
    @agent.on(PacketType.IDEA)
    async def idea(idea: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...

    @agent.on(PacketType.SIGNAL)
    async def signal(packet: Packet[SignalPayload], ctx: HandlerContext) -> None: ...

    registration = agent.registration()
    assert registration.broker_user == "agent.sentinel-1"
    assert registration.rights == {Right.VETO}
    assert registration.handles == {PacketType.IDEA}
    assert agent.registration("guest").broker_user == "guest"


async def not_two(packet: Packet[IdeaPayload]) -> None: ...


def not_async(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...


async def wrong_payload(packet: Packet[EvalPayload], ctx: HandlerContext) -> None: ...


async def no_packet(packet: IdeaPayload, ctx: HandlerContext) -> None: ...


async def returns_text(packet: Packet[IdeaPayload], ctx: HandlerContext) -> str:
    return ""


async def keyword_only(packet: Packet[IdeaPayload], ctx: HandlerContext, *, more: int) -> None: ...


async def unknown_name(packet: "Packet[Nothing]", ctx: HandlerContext) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (not_two, "takes other parameters"),
        (not_async, "is not async: write `async def not_async"),
        (wrong_payload, r"annotate it as Packet\[IdeaPayload\]"),
        (no_packet, r"annotate it as Packet\[IdeaPayload\]"),
        (returns_text, "returns str: return a payload"),
        (keyword_only, "takes other parameters"),
        (unknown_name, "annotations of unknown_name cannot be read"),
    ],
)
def test_a_handler_that_does_not_fit_is_refused_when_the_agent_is_built(
    agent: Agent, handler: Any, message: str
) -> None:
    with pytest.raises(AgentInvalid, match=message):
        agent.on(PacketType.IDEA)(handler)


def test_two_handlers_for_one_type_are_refused(agent: Agent) -> None:
    async def handler(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None: ...

    agent.on(PacketType.IDEA)(handler)
    with pytest.raises(AgentInvalid, match="two handlers for IDEA"):
        agent.on(PacketType.IDEA)(handler)


def test_on_refused_takes_nacks(agent: Agent, make_packet: MakePacket) -> None:
    @agent.on_refused
    async def refused(nack: Packet[NackPayload], ctx: HandlerContext) -> None: ...

    nack = NackPayload(acked_packet_id="018f0000-0000-7000-8000-000000000000", ack_status="REJECTED")
    assert agent.handler_for(make_packet(nack)) is refused
    with pytest.raises(AgentInvalid, match="two on_refused"):
        agent.on_refused(refused)


def test_on_start_takes_the_context_only(agent: Agent) -> None:
    with pytest.raises(AgentInvalid, match="takes other parameters"):
        agent.on_start(not_two_parameters)


async def not_two_parameters(ctx: HandlerContext, more: int) -> None: ...


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agent_id": "orchestrator"}, "reserved"),
        ({"agent_id": "_x"}, "reserved"),
        ({"agent_id": "a b"}, "is no id"),
        ({"swarm": ""}, "is no id"),
        ({"role": ""}, "no role"),
        ({"rights": ("rule",)}, "the rights are operate, decide, validate, veto"),
        ({"concurrency": 0}, "at least 1"),
    ],
)
def test_an_agent_that_nobody_could_register_is_refused(arguments: dict[str, Any], message: str) -> None:
    given = {"agent_id": "a-1", "role": "r", "swarm": "s"} | arguments
    with pytest.raises(AgentInvalid, match=message):
        Agent(given.pop("agent_id"), **given)


def test_a_signal_filter_needs_a_signal_type(agent: Agent) -> None:
    with pytest.raises(AgentInvalid, match="IDEA has no signal"):
        agent.on(PacketType.IDEA, signal=Signal.SYNC)

"""What the SDK does with the mind that it finds, and without one."""

import sys
from collections.abc import Iterator

import pytest
from tests.agents.conftest import MakeIdea

import apc_minds
from apc_agents import Agent, AgentError, AgentTestClient, HandlerContext, HandlerFailed, Reject
from apc_agents.ports import Mind, find_mind, require_mind
from apc_contracts import IdeaPayload, Packet, PacketType
from apc_minds.tools import ToolRegistry


@pytest.fixture
def no_mind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing can import the mind."""
    monkeypatch.setitem(sys.modules, "apc_minds", None)
    find_mind.cache_clear()
    yield
    find_mind.cache_clear()


def sentinel(**options: object) -> Agent:
    return Agent("sentinel-1", role="sentinel", swarm="hybrid", **options)  # type: ignore[arg-type]


def test_the_mind_is_found_by_its_name() -> None:
    expected: Mind = apc_minds
    assert require_mind("a test") is expected


@pytest.mark.usefixtures("no_mind")
async def test_an_agent_without_the_mind_has_state_and_no_memory(idea: MakeIdea) -> None:
    agent = sentinel()

    @agent.on(PacketType.IDEA)
    async def handle(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        ctx.state["ideas"] = ctx.state.get("ideas", 0) + 1
        assert ctx.tasks is None
        with pytest.raises(AgentError, match=r"ctx\.memory: this needs the package apc_minds"):
            _ = ctx.memory
        with pytest.raises(AgentError, match=r"ctx\.memory: this needs the package apc_minds"):
            await ctx.snapshot()

    async with AgentTestClient(agent) as client:
        await client.send(idea())
        assert await client.state() == {"ideas": 1}
        with pytest.raises(AgentError, match=r"client\.memory: this needs the package apc_minds"):
            _ = client.memory
        with pytest.raises(AgentError, match=r"client\.tasks: this needs the package apc_minds"):
            _ = client.tasks


@pytest.mark.usefixtures("no_mind")
async def test_a_bound_of_relevance_needs_the_mind(idea: MakeIdea) -> None:
    agent = sentinel()

    @agent.on(PacketType.IDEA, min_relevance=0.5)
    async def handle(packet: Packet[IdeaPayload], ctx: HandlerContext) -> None:
        raise Reject("it was handled")

    async with AgentTestClient(agent) as client:
        with pytest.raises(HandlerFailed) as caught:
            await client.send(idea())
    assert "ctx.memory: this needs the package apc_minds" in str(caught.value.__cause__)


@pytest.mark.usefixtures("no_mind")
async def test_tools_need_the_mind() -> None:
    agent = sentinel(tools=ToolRegistry())
    with pytest.raises(AgentError, match="tools: this needs the package apc_minds"):
        async with AgentTestClient(agent):
            raise AssertionError("it has started")

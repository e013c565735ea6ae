"""What a worker counts of its handlers and of what they emit."""

import pytest
from prometheus_client import REGISTRY
from tests.agents.conftest import MakeIdea

from apc_agents import Agent, AgentTestClient, EmitRefused, HandlerContext, HandlerFailed, Reject
from apc_bus import telemetry
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType

CLAIM = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)


def value(name: str, **labels: str) -> float:
    """Return a sample now; 0 when there is none yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_handlers_and_emissions_are_counted_by_how_they_end(idea: MakeIdea) -> None:
    agent = Agent("counted-1", role="r", swarm="s")

    @agent.on(PacketType.IDEA)
    async def handle(packet: Packet[IdeaPayload], ctx: HandlerContext) -> IdeaPayload:
        match packet.payload.method_id:
            case "reject":
                raise Reject("no")
            case "fail":
                raise ValueError("broken")
            case "refused":
                with pytest.raises(EmitRefused, match="PROOF_REQUIRED"):
                    await ctx.emit(CLAIM)
        return packet.payload

    async with AgentTestClient(agent) as client:
        for method_id in ("good", "reject", "refused"):
            await client.send(idea(method_id))
        with pytest.raises(HandlerFailed):
            await client.send(idea("fail"))

    def ends(end: str) -> float:
        return value("apc_worker_packets_total", agent="counted-1", type="IDEA", end=end)

    assert (ends("outcome"), ends("reject"), ends("failed"), ends("retry")) == (2, 1, 1, 0)
    assert value("apc_worker_handler_seconds_count", agent="counted-1", type="IDEA") == 4
    assert value("apc_worker_emits_total", agent="counted-1", type="IDEA", result="confirmed") == 2
    assert value("apc_worker_emits_total", agent="counted-1", type="CLAIM", result="refused") == 1
    assert value("apc_worker_emits_total", agent="counted-1", type="ERROR", result="confirmed") == 1


def test_only_so_many_agents_have_their_own_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_known", {})
    labels = [telemetry.agent_label(f"a-{number}") for number in range(telemetry.MOST_AGENTS + 5)]
    assert labels[0] == "a-0"
    assert labels[telemetry.MOST_AGENTS :] == [telemetry.OTHERS] * 5
    assert telemetry.agent_label("a-0") == "a-0"
    assert len(set(labels)) == telemetry.MOST_AGENTS + 1

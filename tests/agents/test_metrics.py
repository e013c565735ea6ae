"""What a worker counts of its handlers and of what they emit."""

import pytest
from prometheus_client import REGISTRY
from tests.agents.conftest import MakeIdea

from apc_agents import Agent, AgentTestClient, EmitRefused, HandlerContext, HandlerFailed, Reject, metrics
from apc_agents.metrics import _WorkerFigures
from apc_bus.telemetry import AGENT_SERIES, OTHERS, AgentLabels, agent_labels
from apc_contracts import ClaimPayload, IdeaPayload, Packet, PacketType

CLAIM = ClaimPayload(claim_id="c", hypothesis_id="h", text="t", confidence_pre=0.5, confidence_post=0.6)


def value(name: str, **labels: str) -> float:
    """Return a sample now; 0 when there is none yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_handlers_and_emissions_are_counted_by_how_they_end(
    idea: MakeIdea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_labels, "most", 2 * AGENT_SERIES)  # tests before may have used up those of the process
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


def test_only_so_many_agents_have_their_own_value() -> None:
    labels = AgentLabels(most=60)
    given = [labels.of(f"a-{number}", "IDEA", series=20) for number in range(5)]
    assert given == ["a-0", "a-1", "a-2", OTHERS, OTHERS]
    assert labels.of("a-0", "IDEA", series=20) == "a-0"
    assert labels.of("a-0", "CLAIM", series=20) == OTHERS, "of this type it shares a value in all figures"


def test_a_process_of_5000_agents_has_few_series(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them handles and emits every type of packet, in every way."""
    monkeypatch.setattr(metrics, "_figures", figures := _WorkerFigures())
    monkeypatch.setattr(metrics, "agent_labels", AgentLabels())
    for number in range(5_000):
        for kind in PacketType:
            metrics.time_handler(f"a-{number}", kind, 0.0)
            for end in ("outcome", "reject", "retry", "expired", metrics.FAILED):
                metrics.count_end(f"a-{number}", kind, end)
            for result in ("confirmed", *metrics._RESULTS.values()):
                figures.emits[metrics._label(f"a-{number}", kind), kind, result] += 1
    samples = [one for family in figures.collect() for one in family.samples]
    assert AGENT_SERIES - metrics.SERIES < sum(one.labels["agent"] != OTHERS for one in samples) <= AGENT_SERIES
    assert len(samples) < 1_700, "less than 2,000 with some 150 that every process has"
    ends = [one for one in samples if one.name == "apc_worker_packets_total" and one.labels["type"] == "IDEA"]
    assert sum(one.value for one in ends) == 25_000, "nothing is left out"


def test_without_the_bound_there_are_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_figures", figures := _WorkerFigures())
    monkeypatch.setattr(metrics, "agent_labels", AgentLabels(most=10**9))
    for number in range(5_000):
        metrics.time_handler(f"a-{number}", PacketType.IDEA, 0.0)
    assert len([one for family in figures.collect() for one in family.samples]) > 60_000

"""The reviewer of examples/: an agent of apc/1.0 in twenty lines."""

from examples.reviewer import agent

from apc_agents import AgentTestClient
from apc_contracts import ClaimPayload, ExpectedImpact, FailureMode, IdeaPayload, PacketType


async def test_it_answers_an_idea() -> None:
    idea = IdeaPayload(
        method_id="ridge-1",
        intent="a regularised baseline",
        assumptions=(),
        required_capabilities=(),
        expected_impact=ExpectedImpact(quality_gain=0.1, cost_change=0.0, risk_change=0.0),
        failure_modes=(FailureMode(id="collinear", description="columns repeat", mitigation="drop them"),),
    )

    async with AgentTestClient(agent) as client:
        reply = await client.send(idea, confidence=0.8)
        state = await client.state()

    assert reply is not None
    assert reply.packet_type is PacketType.CLAIM
    assert isinstance(reply.payload, ClaimPayload)
    assert reply.payload.confidence_post == 0.4
    assert state == {"reviewed": ["ridge-1"]}

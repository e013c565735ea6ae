"""A worker reads strictly what the orchestrator's user has not published, and no agent can publish as that user."""

import re
from pathlib import Path

import pytest

from apc_agents.emitter import Acknowledgements
from apc_agents.running.delivery import KnownSessions
from apc_agents.running.intake import Intake
from apc_bus import headers
from apc_bus.errors import DeadLetter, PublishRefused, TopologyInvalid
from apc_bus.in_memory import InMemoryBroker
from apc_bus.port import Delivery, HeaderValue, Message, Publication
from apc_bus.rabbit.definitions import permissions
from apc_bus.topology import INTER_AGENT, SUBSTRATE, AgentQueues, agent_queue, build_topology
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType

IDEA = (Path(__file__).parents[2] / "contracts" / "wire" / "seed_idea.json").read_bytes()
DOUBLED = IDEA.replace(b'"confidence"', b'"confidence": 0.01, "confidence"', 1)
"""Two readers may take two packets from these bytes: one reads the first confidence, the other the last."""
TOO_MANY = IDEA.rstrip()[:-1] + b', "metadata": {"list": [' + b",".join([b"1"] * 200_000) + b"]}}"
TOLD: dict[str, HeaderValue] = {
    headers.SHARD: 0,
    headers.EPOCH: 1,
    headers.BATCH: 1,
    headers.MARK: "0.0",
    headers.ATTEMPT: 1,
}
VICTIM = AgentQueues("victim-1", "red", frozenset({PacketType.IDEA}))
ATTACKER = AgentQueues("attacker-1", "red", frozenset({PacketType.IDEA}))


def taken(body: bytes, user_id: str | None) -> bool:
    message = Message(body, "m-1", type="idea", user_id=user_id, headers=TOLD)
    intake = Intake(VICTIM.agent_id, KnownSessions(VICTIM.agent_id), Acknowledgements(), 1)
    return intake.take(Delivery(message, 1, "idea.red.victim-1", False), is_urgent=False)[1]


@pytest.mark.parametrize("body", [DOUBLED, TOO_MANY], ids=["doubled key", "too large"])
@pytest.mark.parametrize("user_id", [None, "", "agent.attacker-1", "Orchestrator", "orchestrator ", "operator"])
async def test_what_another_user_published_is_read_strictly(body: bytes, user_id: str | None) -> None:
    assert taken(body, ORCHESTRATOR), "what the orchestrator delivers was read strictly by the gate"
    assert taken(IDEA, user_id), "the bytes are what is refused"
    with pytest.raises(DeadLetter):
        taken(body, user_id)


async def test_bytes_that_are_no_packet_are_refused_from_everybody() -> None:
    for user_id in (ORCHESTRATOR, "agent.attacker-1"):
        assert taken(IDEA, user_id), "the bytes are what is refused"
        with pytest.raises(DeadLetter):
            taken(IDEA.replace(b'"confidence"', b'"confidense"', 1), user_id)


@pytest.mark.parametrize("exchange", [INTER_AGENT, SUBSTRATE, "amq.default", agent_queue("victim-1", False)])
def test_no_agent_has_the_right_to_publish_into_an_inbox(exchange: str) -> None:
    grants = permissions(build_topology(1, [VICTIM, ATTACKER]))
    writes = {user: write for user, (_, write, _) in grants.items()}
    assert re.search(writes["topology"], exchange), "anyone who has this right can publish there"
    assert re.search(writes["agent.attacker-1"], exchange) is None
    assert re.search(writes["operator"], exchange) is None


def test_no_agent_gets_the_orchestrators_user() -> None:
    grants = permissions(build_topology(1, [VICTIM, ATTACKER]))
    assert re.search(grants[ORCHESTRATOR][1], INTER_AGENT), "anyone who has this user publishes into inboxes"
    with pytest.raises(TopologyInvalid, match="is a service's"):
        permissions(build_topology(1, [AgentQueues("attacker-1", "red", broker_user=ORCHESTRATOR)]))


async def test_nobody_publishes_under_the_user_id_of_another() -> None:
    broker = InMemoryBroker(build_topology(1, [VICTIM, ATTACKER]))
    forged = Publication(INTER_AGENT, "idea.red.victim-1", Message(IDEA, "m-1", type="idea", user_id=ORCHESTRATOR))
    await broker.connect(ORCHESTRATOR).publish(forged)
    with pytest.raises(PublishRefused, match="user_id"):
        await broker.connect("agent.attacker-1").publish(forged)

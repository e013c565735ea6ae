"""How far a sender may lead an agent."""

from typing import Any

import pytest
from tests.agents.conftest import MakeIdea, MakePacket

from apc_agents import Agent, AgentTestClient, HandlerContext
from apc_agents.clearance import MAX_SENDERS, PROVENANCE, Clearance, Sender, SenderRule, Trigger
from apc_contracts import Packet, PacketType, SecurityLevel, Signal, SignalPayload
from apc_contracts.vocabulary import Right
from apc_minds.actions import ToolRegistry

CLEARANCE = Clearance(
    agents={"held-1": SecurityLevel.PUBLIC, "root-1": SecurityLevel.ADMIN},
    swarms={"red": SecurityLevel.USER},
    rights={Right.DECIDE: SecurityLevel.TRUSTED},
)


@pytest.mark.parametrize(
    ("sender", "level"),
    [
        (Sender("stranger-1", "outside"), SecurityLevel.PUBLIC),
        (Sender("red-1", "red"), SecurityLevel.USER),
        (Sender("red-1", "red", frozenset({Right.DECIDE, Right.VETO})), SecurityLevel.TRUSTED),
        (Sender("held-1", "red", frozenset({Right.DECIDE})), SecurityLevel.PUBLIC),
        (Sender("root-1"), SecurityLevel.ADMIN),
    ],
)
def test_the_id_counts_first_then_the_highest_of_swarm_and_rights(sender: Sender, level: SecurityLevel) -> None:
    assert CLEARANCE.level_of(sender) is level


@pytest.mark.parametrize(
    ("provenance", "level"),
    [
        (None, SecurityLevel.USER),
        ({"security_level": "admin"}, SecurityLevel.USER),
        ({"security_level": "public", "senders": ["root-1"]}, SecurityLevel.PUBLIC),
        ({"security_level": "user", "senders": ["held-1"]}, SecurityLevel.PUBLIC),
        ({"security_level": "root"}, SecurityLevel.PUBLIC),
        ("admin", SecurityLevel.PUBLIC),
        ({"security_level": "user", "senders": [f"a-{number}" for number in range(99)]}, SecurityLevel.PUBLIC),
    ],
)
def test_a_chain_has_the_lowest_level_of_all(
    make_packet: MakePacket, idea: MakeIdea, provenance: Any, level: SecurityLevel
) -> None:
    packet = make_packet(idea("m-1"), metadata=None if provenance is None else {PROVENANCE: provenance})
    clearance = Clearance(agents=CLEARANCE.agents, swarms={packet.sender.swarm_id: SecurityLevel.USER})
    assert Trigger.of(packet, (), clearance).level is level


def test_a_rule_must_allow_everybody_in_the_chain() -> None:
    rule = SenderRule(agents=("b-1",), rights=(Right.DECIDE,))
    first, second = Sender("a-1", "red", frozenset({Right.DECIDE})), Sender("b-1")
    assert Trigger((first, second), SecurityLevel.USER).may_use(rule)
    assert not Trigger((first, second, Sender("c-1")), SecurityLevel.USER).may_use(rule)
    assert Trigger((), SecurityLevel.PUBLIC).may_use(None)


def test_a_chain_that_is_too_long_to_name_has_the_lowest_level() -> None:
    senders = tuple(Sender(f"a-{number}") for number in range(MAX_SENDERS + 1))
    told = Trigger(senders, SecurityLevel.ADMIN).provenance(SecurityLevel.ADMIN)
    assert told["security_level"] == "public"


def test_senders_with_the_same_tools_share_a_compartment() -> None:
    tools = ToolRegistry()

    @tools.tool(senders=SenderRule(rights=(Right.DECIDE,)))
    async def deploy() -> None:
        """Deploys."""

    names = {
        tools.compartment(Trigger((Sender(agent_id, "red", frozenset(rights)),), SecurityLevel.USER))
        for agent_id, rights in [("a-1", ()), ("b-1", (Right.VETO,)), ("c-1", (Right.DECIDE,))]
    }
    assert len(names) == 2 and "user" in names


async def test_the_rights_that_the_gate_tells_reach_the_handler() -> None:
    agent, seen = Agent("red-1", role="builder", swarm="red"), list[frozenset[Right]]()

    @agent.on(PacketType.SIGNAL, signal=Signal.QUERY)
    async def look(signal: Packet[SignalPayload], ctx: HandlerContext) -> None:
        seen.append(ctx.sender_rights)

    async with AgentTestClient(agent) as client:
        await client.send(SignalPayload(signal=Signal.QUERY), rights=(Right.VETO, Right.DECIDE))
        await client.send(SignalPayload(signal=Signal.QUERY))
    assert seen == [frozenset({Right.VETO, Right.DECIDE}), frozenset()]

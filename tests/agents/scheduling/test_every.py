"""`@agent.every`: what it registers, what it refuses, and which Ticks its handler takes."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from tests.agents.scheduling.conftest import SEVEN, make_agent

from apc_agents import Agent, AgentError, AgentInvalid, AgentTestClient, HandlerContext, Tick
from apc_agents.scheduling import tick_id
from apc_contracts.payloads.by_type import DecisionPayload, NackPayload
from apc_contracts.vocabulary import Right


async def work(tick: Tick, ctx: HandlerContext) -> None: ...


def test_the_agent_declares_what_its_schedules_need() -> None:
    agent = make_agent()
    assert agent.rights == {Right.SCHEDULE}
    assert agent.schemas == {"tick/1"}
    assert agent.models == frozenset({Tick})
    assert agent.schedules["report"].spec.members == ("clerk-1",)
    assert agent.schedules["report"].spec.deciders == ("clerk-1",)


def test_other_members_and_the_deadline_are_those_of_the_session() -> None:
    agent = Agent("clerk-1", role="clerk", swarm="desk", rights=["decide"])
    agent.every("0 7 * * *", members=["reader-1", "clerk-1"], deadline=timedelta(hours=2))(work)
    spec = agent.schedules["work"].spec
    assert (spec.members, spec.deadline_ms) == (("clerk-1", "reader-1"), 7_200_000)
    assert agent.rights == {Right.DECIDE, Right.SCHEDULE}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"line": "0 0 30 2 *"}, "agent clerk-1: schedule 'work': '0 0 30 2 \\*' never fires"),
        ({"line": "every day"}, "schedule 'work': 'every day' has 2 fields"),
        ({"timezone": "Mars/Olympus"}, "schedule 'work': there is no time zone"),
        ({"misfire": "twice"}, "schedule 'work': misfire 'twice' is none of skip, once, all"),
        ({"members": ["a b"]}, "schedule 'work': members.1"),
        ({"deadline": timedelta(0)}, "schedule 'work': deadline_ms"),
        ({"name": "a b"}, "schedule 'a b' has a name that is no id"),
        ({"retries": 11}, "retries 11 is outside"),
    ],
)
def test_what_cannot_work_is_refused_at_its_definition(given: dict[str, Any], why: str) -> None:
    agent = Agent("clerk-1", role="clerk", swarm="desk")
    with pytest.raises(AgentInvalid, match=why):
        agent.every(**{"line": "0 7 * * *", **given})(work)


def test_a_name_and_a_function_are_checked() -> None:
    agent = make_agent()
    with pytest.raises(AgentInvalid, match="agent clerk-1 has two schedules 'report'"):
        agent.every("0 8 * * *", name="report")(work)

    async def wrong(tick: str, ctx: HandlerContext) -> None: ...

    with pytest.raises(AgentInvalid, match="wrong is registered for Tick but takes str"):
        agent.every("0 8 * * *")(wrong)


async def test_a_tick_is_handled_by_the_function_of_its_schedule() -> None:
    async with AgentTestClient(make_agent()) as client:
        done = await client.tick("report", SEVEN)
        assert done is not None
        assert done.payload_as(DecisionPayload).recommendation == SEVEN.isoformat()
        with pytest.raises(AgentError, match="clerk-1 has no schedule 'other'; it has report"):
            await client.tick("other")


async def test_a_tick_of_a_schedule_that_is_gone_is_rejected() -> None:
    agent = make_agent()
    async with AgentTestClient(agent) as client:
        gone = Tick(name="gone", instant=SEVEN)
        nack = await client.send(gone, sender=agent.actor, packet_id=tick_id("clerk-1", gone))
        assert nack is not None
        assert "no handler" in str(nack.payload_as(NackPayload).reason)


@pytest.mark.parametrize("forged", [{"sender": "mallory"}, {"packet_id": uuid4()}], ids=["stranger", "another id"])
async def test_a_tick_that_the_schedule_has_not_sent_is_rejected(forged: dict[str, Any]) -> None:
    agent, tick = make_agent(), Tick(name="report", instant=SEVEN)
    options: dict[str, Any] = {"sender": agent.actor, "packet_id": tick_id("clerk-1", tick)} | forged
    async with AgentTestClient(agent) as client:
        nack = await client.send(tick, **options)
        assert nack is not None
        assert "only clerk-1 itself sends its Ticks" in str(nack.payload_as(NackPayload).reason)

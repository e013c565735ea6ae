"""Registrations say which protocol versions an agent reads; a session begins only with members who read its own."""

import json
from typing import Any
from uuid import uuid4

import pytest
from tests.orchestrator.conftest import House
from tests.orchestrator.judging.test_task_sessions import open_task, refusal_of
from tests.support.traffic.packets import AGENTS, make_start

from apc_agents import Agent
from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_client.registration import addition
from apc_contracts import PacketType
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_log.registry import read_registry
from apc_orchestrator.judging.registry import Registry

VERSIONS = """
SELECT DISTINCT convert_from(body_stored, 'UTF8')::jsonb ->> 'protocol_version' AS version FROM apc_log.agent_packets
"""
FACTS = "SELECT facts FROM apc_log.agent_packets WHERE packet_id = $1"
OPEN = "SELECT session_id FROM apc_log.sessions ORDER BY 1"


async def register(house: House, agent_id: str, **fields: Any) -> None:
    swarm, rights = AGENTS[agent_id]
    described = {"broker_user": f"agent.{agent_id}", "rights": rights} | fields
    change = AgentAdded(
        change_id=uuid4(),
        agent_id=agent_id,
        role="role",
        swarm_id=swarm,
        handles=tuple(PacketType),
        **described,
    )
    sent = Message(encode_registry_change(change), str(uuid4()), type=headers.TYPE_REGISTRY, user_id="operator")
    await house.client("operator").publish(Publication(RECEIPTS, "0", sent))
    await house.quiet()


@pytest.mark.parametrize("speaks", [None, ("apc/1.0",)])
async def test_a_task_does_not_begin_with_a_member_who_cannot_read_it(house: House, speaks: Any) -> None:
    """Its registration says so, or says nothing; once it speaks apc/1.1 the task begins, also after a takeover."""
    before, after, later = open_task("s-2"), open_task("s-3"), open_task("s-4")
    async with house.persister():
        async with house.gate():
            await house.register()
            await register(house, "blue-1", speaks=speaks)
            await house.publish(before)
            await house.quiet()
            told = [packet.payload.reason for packet in await house.nacks("librarian")]
            await register(house, "blue-1", speaks=("apc/1.0", "apc/1.1"))
            await house.publish(after)
            await house.quiet()
        async with house.gate():
            await house.publish(later)
            await house.quiet()
        facts = json.loads(await house.pool.fetchval(FACTS, before.packet_id))
        opened = [row["session_id"] for row in await house.pool.fetch(OPEN)]
    assert await refusal_of(house, before) == ("UNROUTABLE", "payload.session.members[1]")
    assert "blue-1 does not speak the session's version apc/1.1: " in told[0]
    assert "`apc agent add MODULE:AGENT`, or with --speaks apc/1.0,apc/1.1" in told[0]
    assert facts["unready"] == {"blue-1": ["old"]}
    assert opened == ["s-3", "s-4"]


async def test_a_research_session_takes_them_and_emits_only_what_they_read(house: House) -> None:
    opening = make_start()
    async with house.persister(), house.gate():
        await house.register()
        for agent_id in AGENTS:
            await register(house, agent_id)
        await house.publish(opening)
        await house.quiet()
        versions = {row["version"] for row in await house.pool.fetch(VERSIONS)}
        assert await house.state() == "SESSION_OPEN"
    assert versions == {"apc/1.0"}


async def test_agents_of_the_sdk_speak_both(house: House) -> None:
    """So does what the gate reads of them in the log, and what a registration without `speaks` means."""
    described = Agent("red-1", role="role", swarm="red").registration()
    change = addition(described)
    async with house.persister(), house.gate():
        await house.register()
        body = encode_registry_change(change)
        sent = Message(body, str(uuid4()), type=headers.TYPE_REGISTRY, user_id="operator")
        await house.client("operator").publish(Publication(RECEIPTS, "0", sent))
        await register(house, "blue-1")
        known = await read_registry(house.pool)
        loaded = (await Registry.load(house.pool, "orchestrator", 0)).by_id
    assert change.speaks == ("apc/1.0", "apc/1.1") == tuple(sorted(described.speaks))
    assert known["red-1"].speaks == loaded["red-1"].speaks == described.speaks
    assert known["blue-1"].speaks == {"apc/1.0"}

"""Typed content through the gate: schemas are registered, content is judged by them, and all of it is in the log.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

import json
from typing import Any
from uuid import uuid4

from tests.orchestrator.conftest import House
from tests.support.traffic.packets import AGENTS, SESSION, make_packet, make_start

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import CommitmentLevel, DecisionPayload, MessagePayload, Packet, Result, new_packet_id
from apc_contracts.identity.registry_change import AgentAdded, SchemaAdded, encode_registry_change
from apc_contracts.schemas import register_schema
from apc_contracts.vocabulary import ALL_RECIPIENTS, DeliveryMode, PacketType, Signal

from .test_task_sessions import begin, decision, open_task, refusal_of, work

FINDING = {
    "type": "object",
    "properties": {"file": {"type": "string"}, "line": {"type": "integer"}},
    "required": ["file", "line"],
}
REGISTERED = "SELECT count(*) FROM apc_log.registry_events WHERE agent_id = $1"
CONFLICTS = "SELECT kind, reason FROM apc_log.packet_conflicts ORDER BY seq"


def message(schema_id: str = "finding/1", **content: Any) -> MessagePayload:
    return MessagePayload(schema_id=schema_id, content=content)


async def register(house: House, document: Any, schema_id: str = "finding/1", user: str = "operator") -> None:
    change = SchemaAdded(change_id=uuid4(), schema_id=schema_id, document=document)
    body = encode_registry_change(change)
    sent = Message(body, str(new_packet_id()), type=headers.TYPE_REGISTRY, user_id=user)
    await house.client(user).publish(Publication(RECEIPTS, "0", sent))
    await house.quiet()


async def send(house: House, task: Packet, payload: MessagePayload, *to: str, **fields: Any) -> Packet:
    packet: Packet = work("red-1", payload, to or ("blue-1",), parent=task, version="apc/1.1", **fields)
    await house.publish(packet)
    await house.quiet()
    return packet


async def test_content_is_judged_by_its_schema_also_after_a_takeover(house: House) -> None:
    async with house.persister():
        async with house.gate():
            task = await begin(house, open_task())
            stranger = await send(house, task, message(file="a.py", line=3))
            await register(house, FINDING)
            good = await send(house, task, message(file="a.py", line=3))
            bad = await send(house, task, message(file="a.py", line="three"))
        async with house.gate():
            again = await send(house, task, message(file="b.py", line=4))
            short = await send(house, task, message(file="b.py"))
            told = [nack.payload.reason for nack in await house.nacks("red-1")]
        statement = "SELECT facts -> 'content' FROM apc_log.agent_packets WHERE packet_id = $1"
        facts = json.loads(await house.pool.fetchval(statement, bad.packet_id))
    assert await refusal_of(house, stranger) == ("CONTENT_INVALID", "payload.schema")
    assert await refusal_of(house, bad) == ("CONTENT_INVALID", "payload.content.line")
    assert await refusal_of(house, short) == ("CONTENT_INVALID", "payload.content")
    assert facts[0] == "payload.content.line"
    assert facts[2] == register_schema("finding/1", FINDING).hash.hex()
    assert [await house.state_of(one) for one in (good, again)] == ["ROUTED", "ROUTED"]
    assert any("register it with `apc schema register`" in reason for reason in told)


async def test_a_version_never_changes_but_its_words_may(house: House) -> None:
    async with house.persister(), house.gate():
        task = await begin(house, open_task())
        await register(house, FINDING)
        await register(house, FINDING | {"required": []})
        await register(house, FINDING | {"title": "Finding"})
        await register(house, FINDING | {"required": []}, "finding/2")
        bad = await send(house, task, message(file="a.py"))
        good = await send(house, task, message("finding/2", file="a.py"))
        found = [tuple(row) for row in await house.pool.fetch(CONFLICTS)]
    assert found == [("refused", "the schema finding/1 is registered with other content: give it a new version")]
    assert await refusal_of(house, bad) == ("CONTENT_INVALID", "payload.content")
    assert await house.state_of(good) == "ROUTED"


async def test_a_stranger_registers_no_schema(house: House) -> None:
    """The same change by the operator is taken."""
    async with house.persister(), house.gate():
        await begin(house, open_task())
        await register(house, FINDING, user="agent.red-1")
        assert await house.pool.fetchval(REGISTERED, "schema/finding/1") == 0
        await register(house, FINDING)
        assert await house.pool.fetchval(REGISTERED, "schema/finding/1") == 1
        kinds = [row["kind"] for row in await house.pool.fetch(CONFLICTS)]
    assert kinds == ["security"]


async def test_who_takes_a_schema_gets_it(house: House) -> None:
    """blue-1 takes finding/1 alone: another schema is UNROUTABLE to it, and a BROADCAST leaves it out."""
    async with house.persister(), house.gate():
        task = await begin(house, open_task())
        for schema_id in ("finding/1", "finding/2"):
            await register(house, FINDING, schema_id)
        swarm, rights = AGENTS["blue-1"]
        change = AgentAdded(
            change_id=uuid4(),
            agent_id="blue-1",
            broker_user="agent.blue-1",
            role="role",
            swarm_id=swarm,
            rights=rights,
            handles=tuple(PacketType),
            schemas=("finding/1",),
        )
        sent = Message(encode_registry_change(change), str(uuid4()), type=headers.TYPE_REGISTRY, user_id="operator")
        await house.client("operator").publish(Publication(RECEIPTS, "0", sent))
        taken = await send(house, task, message(file="a.py", line=1))
        refused = await send(house, task, message("finding/2", file="a.py", line=1))
        everyone = await send(
            house, task, message("finding/2", file="a.py", line=1), ALL_RECIPIENTS, mode=DeliveryMode.BROADCAST
        )
        statement = "SELECT recipients FROM apc_log.agent_packets WHERE packet_id = $1"
        reached = await house.pool.fetchval(statement, everyone.packet_id)
    assert await house.state_of(taken) == "ROUTED"
    assert await refusal_of(house, refused) == ("UNROUTABLE", "recipients[0]")
    assert "blue-1" not in reached and "sentinel" in reached


async def test_research_forbids_messages(house: House) -> None:
    opening = make_start()
    async with house.persister(), house.gate():
        await house.open(opening)
        await register(house, FINDING)
        packet = make_packet("red-1", message(file="a.py", line=1), ("blue-1",), parent=opening, version="apc/1.1")
        await house.publish(packet)
        await house.quiet()
    assert await refusal_of(house, packet) == ("PHASE_FORBIDS_TYPE", "packet_type")


async def test_a_message_that_a_pause_held_is_judged_at_resume(house: House) -> None:
    from apc_contracts import SignalPayload

    async with house.persister(), house.gate():
        task = await begin(house, open_task())
        await house.publish(work("librarian", SignalPayload(signal=Signal.PAUSE), parent=task))
        bad = await send(house, task, message(file="a.py", line="three"))
        await register(house, FINDING)
        await house.publish(work("librarian", SignalPayload(signal=Signal.RESUME), parent=task))
        await house.quiet()
        statement = "SELECT metadata FROM apc_log.packet_events WHERE packet_id = $1 ORDER BY seq DESC LIMIT 1"
        told = await house.pool.fetchval(statement, bad.packet_id)
    assert "CONTENT_INVALID" in str(told) and SESSION


async def test_the_result_of_a_decision_is_judged(house: House) -> None:
    """A wrong result ends nothing; the right one closes the session."""

    def done(**content: Any) -> DecisionPayload:
        result = Result(schema_id="finding/1", content=content)
        return decision(CommitmentLevel.DONE).model_copy(update={"result": result})

    async with house.persister(), house.gate():
        task = await begin(house, open_task())
        await register(house, FINDING)
        bad = work("red-1", done(file=3, line=3), parent=task, version="apc/1.1")
        await house.publish(bad)
        await house.quiet()
        assert await house.state() == "WORKING"
        await house.publish(work("red-1", done(file="a.py", line=3), parent=task, version="apc/1.1"))
        await house.quiet()
    assert await refusal_of(house, bad) == ("CONTENT_INVALID", "payload.result.content.file")
    assert await house.state() == "CLOSED"

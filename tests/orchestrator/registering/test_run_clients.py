"""The client of a run has no inbox: what it is told takes effect and stands in the log, and nobody delivers it.

The fixture `house` replays everything at the end of each test and compares the projections.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import structlog
from tests.orchestrator.conftest import House, make_brief
from tests.orchestrator.judging.test_task_sessions import MEMBERS, refusal_of, work
from tests.support.traffic.packets import AGENTS, ROLE, make_packet

from apc_bus import headers
from apc_bus.port import Message, Publication
from apc_bus.topology import RECEIPTS
from apc_contracts import AckPayload, Packet, SignalPayload
from apc_contracts.identity.registry import CLIENTS
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.payloads.by_type import AgentRequest, ErrorPayload, Payload
from apc_contracts.payloads.session_signals import TaskSessionSpec
from apc_contracts.vocabulary import ORCHESTRATOR, PROTOCOL_VERSIONS, AckStatus, Signal

CLIENT = "client-0123456789ab"
CAST = {**AGENTS, CLIENT: (CLIENTS, ("operate",))}
DEAD = "SELECT count(*) FROM apc_log.packet_events WHERE to_state = 'DEAD_LETTERED'"
ROW = "SELECT verdict, recipients, facts ->> 'to' FROM apc_log.agent_packets WHERE packet_id = $1"
BY_GATE = """
SELECT packet_type FROM apc_log.agent_packets
WHERE sender_agent_id = 'orchestrator' AND facts ->> 'to' = $1 AND recipients = '{orchestrator}'
"""
OPEN_ACKS = "SELECT document -> 'pending_acks' FROM apc_log.sessions"


async def register_client(house: House) -> None:
    """Register the client of a run, as the operator does."""
    change = AgentAdded(
        change_id=uuid4(),
        agent_id=CLIENT,
        broker_user=f"agent.{CLIENT}",
        role=ROLE,
        swarm_id=CLIENTS,
        rights=("operate",),
        handles=(),
        speaks=PROTOCOL_VERSIONS,
    )
    body = encode_registry_change(change)
    message = Message(body, str(change.change_id), type=headers.TYPE_REGISTRY, user_id="operator")
    await house.client("operator").publish(Publication(RECEIPTS, "0", message))


async def begin(house: House) -> Packet:
    """Open a session in the name of a client; return the task that it sends, of which it wants an ACK."""
    await house.register()
    await register_client(house)
    spec = TaskSessionSpec(contract="task", members=MEMBERS, deciders=("red-1",))
    opening = make_packet(CLIENT, SignalPayload(signal=Signal.START, session=spec), cast=CAST, version="apc/1.1")
    task = work(CLIENT, make_brief(), ("red-1",), parent=opening, requires_ack=True, cast=CAST)
    for packet in (opening, task):
        await house.publish(packet)
    await house.quiet()
    return task


async def send(house: House, payload: Payload, task: Packet, *to: str, **fields: Any) -> Packet:
    sent = work("red-1", payload, to or (CLIENT,), parent=task, **fields)
    await house.publish(sent)
    await house.quiet()
    return sent


async def test_what_answers_a_client_takes_effect_and_is_not_delivered(house: House) -> None:
    """Before, each was accepted and became a dead letter with the reason no_route."""
    async with house.persister(), house.gate():
        task = await begin(house)
        ack = AckPayload(acked_packet_id=task.packet_id, ack_status=AckStatus.ACCEPTED)
        error = ErrorPayload(error_code="HANDLER_ERROR", message="it failed", retryable=False)
        for payload in (error, ack):
            sent = await send(house, payload, task)
            row = await house.pool.fetchrow(ROW, sent.packet_id)
            assert row is not None
            assert tuple(row) == ("accepted", [ORCHESTRATOR], CLIENT)
        assert await house.pool.fetchval(OPEN_ACKS) == "{}"
        assert await house.pool.fetchval(DEAD) == 0


async def test_what_the_gate_tells_a_client_stands_in_the_log(house: House) -> None:
    """An ERROR about a dead letter of its packet; no NACK of a refused one, which it reads in the log too."""
    with structlog.testing.capture_logs() as said:
        async with house.persister(), house.gate():
            task = await begin(house)
            await house.report("red-1", task.packet_id, "dead_lettered", user=ORCHESTRATOR)
            refused = work(CLIENT, make_brief(), ("nobody",), parent=task, cast=CAST)
            await house.publish(refused)
            await house.quiet()
            told = await house.pool.fetch(BY_GATE, CLIENT)
            assert await refusal_of(house, refused) == ("UNROUTABLE", "recipients[0]")
        dead = await house.pool.fetchval(DEAD)
    assert ([row[0] for row in told], dead) == (["ERROR"], 1), "the task itself, and nothing that is said about it"
    assert "nack_undeliverable" not in {one["event"] for one in said}


async def test_a_client_is_not_asked(house: House) -> None:
    """A request, its role, and a list of recipients that names it; the other agents with the role are asked."""
    request = AgentRequest.model_validate({"schema": "finding/1", "content": {}, "returns": "finding/1"})
    until = datetime.now(UTC) + timedelta(minutes=5)
    asking = SignalPayload(signal=Signal.ASK, expected_response_by=until, request=request)
    query = SignalPayload(signal=Signal.QUERY, reason="who is there?")
    async with house.persister(), house.gate():
        task = await begin(house)
        asked = await send(house, asking, task, CLIENT, version="apc/1.1")
        assert await refusal_of(house, asked) == ("UNROUTABLE", "recipients[0]")
        several = await send(house, query, task, "blue-1", CLIENT)
        assert await refusal_of(house, several) == ("UNROUTABLE", "recipients[1]")
        by_role = await send(house, asking, task, f"role:{ROLE}", version="apc/1.1")
        row = await house.pool.fetchrow(ROW, by_role.packet_id)
    assert row is not None
    assert row["recipients"] == ["blue-1", "sentinel"], "the other members with the role"

"""Packets through a real broker, the gate and a real database: judged, logged, delivered, followed to their end."""

from typing import Any
from uuid import uuid4

import orjson
import pytest
from tests.integration.conftest import House
from tests.support.traffic import make_idea, make_packet, until

from apc_bus import headers
from apc_bus.topology import agent_queue
from apc_contracts import ReceiptKind, parse_packet
from apc_contracts.identity.ids import reply_id
from apc_contracts.vocabulary import DeliveryMode, PacketType
from apc_contracts.wire.parsing import seal


async def test_a_packet_from_end_to_end(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(sent)
    (delivery,) = await running.agents.receive("sentinel")
    message = delivery.message
    assert message.body == seal(sent).body, "the exact bytes"
    assert message.message_id == str(sent.packet_id)
    assert message.type == "IDEA"
    assert message.correlation_id == str(running.opening.packet_id), "the root of its tree"
    assert message.user_id == running.agents.bus.user
    assert 0 < (message.expiration_ms or 0) <= 3_600_000
    found = message.headers
    assert (found[headers.SHARD], found[headers.EPOCH], found[headers.ATTEMPT]) == (0, 1, 1)
    assert found[headers.MARK] == "0.0"
    assert (found[headers.PHASE], found[headers.ROUND], found[headers.GENERATION]) == ("RESEARCH", 1, 0)
    await until(running.is_logged(sent.packet_id))
    assert await running.pool.fetchval("SELECT verdict FROM apc_log.packets WHERE packet_id = $1", sent.packet_id)
    await running.agents.report("sentinel", [sent.packet_id])
    await until(running.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
    document = orjson.loads(await running.pool.fetchval("SELECT document FROM apc_log.sessions"))
    assert document["spent"] == {"packets": 1}


async def test_a_refusal_is_answered(running: House) -> None:
    refused = make_packet("red-1", make_idea(), ("nobody",), parent=running.opening)
    await running.agents.publish(refused)
    (delivery,) = await running.agents.receive("red-1", urgent=True)
    nack: Any = parse_packet(delivery.message.body)
    assert nack.packet_type is PacketType.NACK
    assert nack.packet_id == reply_id(refused.packet_id, "orchestrator", "nack")
    assert nack.metadata["refusal"]["code"] == "UNROUTABLE"
    await until(running.is_logged(refused.packet_id))
    row = await running.pool.fetchrow(
        "SELECT verdict, refusal_code FROM apc_log.agent_packets WHERE packet_id = $1", refused.packet_id
    )
    assert row is not None and tuple(row) == ("refused", "UNROUTABLE")


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"user_id": None}, "SENDER_MISMATCH"),
        ({"headers": {"CC": ["idea.watch.sentinel"]}}, "SENDER_MISMATCH"),
        ({"body": b"\xff no packet"}, "MALFORMED"),
    ],
)
async def test_what_takes_no_id_is_kept_with_its_bytes(running: House, properties: dict[str, Any], code: str) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(sent, **properties)

    async def is_recorded() -> bool:
        return bool(await running.count("packet_conflicts") == 1)

    await until(is_recorded)
    row = await running.pool.fetchrow("SELECT code, raw FROM apc_log.packet_conflicts")
    assert row is not None and tuple(row) == (code, properties.get("body", seal(sent).body))
    behind = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(behind)
    (delivery,) = await running.agents.receive("sentinel")
    assert delivery.message.message_id == str(behind.packet_id), "the refused one was not delivered"


@pytest.mark.long
async def test_a_blind_copy_reaches_nobody(running: House) -> None:
    """The broker strips BCC, so the gate cannot refuse it: ingress leads to gate queues only."""
    sent = make_packet("red-1", make_idea(), ("sentinel",), parent=running.opening)
    await running.agents.publish(sent, headers={"BCC": ["idea.blue.blue-1"]})
    (delivery,) = await running.agents.receive("sentinel")
    assert delivery.message.message_id == str(sent.packet_id)
    assert (await running.agents.bus.depth(agent_queue("blue-1", urgent=False))).messages == 0


async def test_a_multicast_is_one_row_and_a_delivery_each(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("sentinel", "blue-1"), parent=running.opening)
    await running.agents.publish(sent)
    for agent in ("sentinel", "blue-1"):
        (delivery,) = await running.agents.receive(agent)
        assert delivery.message.message_id == str(sent.packet_id)
    await running.agents.report("sentinel", [sent.packet_id])
    await running.agents.report("blue-1", [sent.packet_id], ReceiptKind.DELIVERY_ACK, ReceiptKind.REJECT)
    await until(running.has_come_to("ARCHIVED", sent.packet_id, "sentinel"))
    await until(running.has_come_to("REJECTED_POLICY", sent.packet_id, "blue-1"))
    assert await running.count("agent_packets", f"packet_id = '{sent.packet_id}'") == 1


async def test_a_broadcast_reaches_all_members_but_its_sender(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("_all",), parent=running.opening, mode=DeliveryMode.BROADCAST)
    await running.agents.publish(sent)
    await until(running.is_logged(sent.packet_id))
    resolved = await running.pool.fetchval(
        "SELECT recipients FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id
    )
    assert "red-1" not in resolved and {"blue-1", "sentinel"} <= set(resolved)
    for agent in resolved:
        (delivery,) = await running.agents.receive(agent)
        assert delivery.message.message_id == str(sent.packet_id)


async def test_a_substrate_packet_is_in_the_stream(running: House) -> None:
    sent = make_packet("red-1", make_idea(), ("_substrate",), parent=running.opening, mode=DeliveryMode.SUBSTRATE)
    await running.agents.publish(sent)
    await until(running.has_come_to("ARCHIVED", sent.packet_id, "_substrate"))
    async with running.agents.bus.read_substrate("first") as stream:
        (delivery,) = await stream.receive()
    assert delivery.message.message_id == str(sent.packet_id)
    assert delivery.message.body == seal(sent).body


async def test_receipts_of_strangers_change_nothing(running: House) -> None:
    stranger = uuid4()
    await running.agents.report("blue-1", [stranger])

    async def is_recorded() -> bool:
        return bool(await running.count("packet_conflicts", "kind = 'security'") > 0)

    await until(is_recorded)
    assert await running.count("packet_events", f"packet_id = '{stranger}'") == 0

"""One packet through broker, gate, database and agent."""

from collections.abc import Callable

import orjson
from tests.orchestrator.conftest import House

from apc_bus import headers
from apc_contracts import IdeaPayload, Packet
from apc_contracts.vocabulary import PacketType


async def test_a_packet_is_judged_logged_delivered_and_followed_to_its_end(
    house: House, packet: Callable[..., Packet], start: Callable[..., Packet], idea: IdeaPayload
) -> None:
    async with house.persister(), house.gate():
        opening = await house.open(start())
        assert await house.state() == "SESSION_OPEN"
        sync = await house.handle("red-1")
        assert [one.packet_type for one in sync] == [PacketType.SIGNAL]
        sent = packet("red-1", idea, ("sentinel",), parent=opening)
        body = await house.publish(sent)
        await house.quiet()
        received = await house.read("sentinel")
        assert received[-1].message.body == body
        assert headers.RIGHTS not in received[-1].message.headers
        await house.report("sentinel", sent.packet_id, *("delivery_ack", "consumer_apply", "outcome"))
        await house.quiet()
    row = await house.pool.fetchrow("SELECT * FROM apc_log.agent_packets WHERE packet_id = $1", sent.packet_id)
    assert row["verdict"] == "accepted" and row["body_stored"] == body
    hops = await house.pool.fetch(
        "SELECT from_state, to_state, recipient, events FROM apc_log.packet_events WHERE packet_id = $1 ORDER BY seq",
        sent.packet_id,
    )
    assert [(hop["from_state"], hop["to_state"], hop["recipient"]) for hop in hops] == [
        ("DRAFT", "ROUTED", ""),
        ("ROUTED", "APPLIED", "sentinel"),
        ("APPLIED", "ARCHIVED", "sentinel"),
    ]
    document = orjson.loads(await house.pool.fetchval("SELECT document FROM apc_log.sessions"))
    assert document["spent"] == {"packets": 1}


async def test_a_delivery_tells_the_rights_of_its_sender(
    house: House, packet: Callable[..., Packet], start: Callable[..., Packet], idea: IdeaPayload
) -> None:
    async with house.persister(), house.gate():
        opening = await house.open(start())
        await house.publish(packet("librarian", idea, ("sentinel",), parent=opening))
        await house.quiet()
        received = await house.read("sentinel")
    assert received[-1].message.headers[headers.RIGHTS] == "operate"

"""Messages that no library writes and a broker confirms: whatever is in them, who consumes after them goes on."""

from asyncio import to_thread
from collections.abc import AsyncIterator, Mapping
from hashlib import sha256
from random import Random
from uuid import uuid4

import pytest
from pydantic import SecretStr
from tests.integration.conftest import House, house, shards
from tests.support.hostile_messages import (
    EXPIRATION,
    HEADERS,
    MESSAGE_ID,
    TIMESTAMP,
    USER_ID,
    Draft,
    HostileMessages,
    RawMessage,
    nested,
)
from tests.support.raw_amqp import CONFIRMED, RawClient, content, long, short
from tests.support.traffic import make_idea, make_packet, make_start, until

from apc_bus.headers import UNREADABLE
from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.rabbit.bundles import unbundled
from apc_bus.rabbit.decoding import read_delivery
from apc_bus.settings import BusSettings
from apc_bus.topology import DEAD_QUEUE, INGRESS, RECEIPTS, build_topology, gate_queue
from apc_contracts import AckPayload, Packet, SignalPayload, seal
from apc_contracts.vocabulary import AckStatus, Signal

__all__ = ["house", "shards"]
pytestmark = pytest.mark.broker
SEED = 20261126
GUEST = short(b"guest")
ODD: dict[str, HeaderValue] = {"apc-cause": "x", "apc-ordinal": 1, "CC": ["0"]}
KEPT = """
SELECT packet_hash AS hash FROM apc_log.agent_packets
UNION SELECT coalesce(second_hash, sha256(raw)) FROM apc_log.packet_conflicts
"""


def told(table: bytes, flags: int = 0, *parts: bytes) -> bytes:
    """Return the properties of a message of this header table, by guest."""
    return (HEADERS | USER_ID | flags).to_bytes(2, "big") + long(table) + b"".join(parts) + GUEST


DEEP = {
    f"{depth} {name}": told(b"\x01a" + nested(kind, depth))
    for kind, name in ((b"A", "arrays"), (b"F", "tables"))
    for depth in (500, 1000, 3000, 20_000)
    if depth < 20_000 or kind == b"A"
}
READABLE = DEEP | {
    "a time that does not exist": told(b"\x01aT" + b"\xff" * 8, TIMESTAMP, b"\xff" * 8),
    "a decimal": told(b"\x01aD" + b"\xff" * 5),
    "flags without meaning": told(b"", 3),
    "an offset in a queue": told(short(b"x-stream-offset") + b"l" + b"\0" * 8),
    "a forged death": told(short(b"x-death") + b"A" + long(nested(b"F", 1000))),
}
BROKEN = {
    "an id that is no text": told(b"", MESSAGE_ID, short(b"\xff" * 255)),
    "a header name that is no text": told(b"\x02\xff\xfeV"),
}


@pytest.fixture
async def bus(amqp_vhost_url: str) -> AsyncIterator[RabbitBus]:
    await apply_rabbit(amqp_vhost_url, build_topology())
    connected = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    yield connected
    await connected.close()


async def test_the_consumer_of_a_queue_goes_on(bus: RabbitBus, amqp_vhost_url: str) -> None:
    copied = told(b"\x02CCA" + long(b"S" + long(b"0") + b"V"))
    with RawClient(amqp_vhost_url) as client:
        async with bus.subscribe(gate_queue(0)) as subscription:
            for name, properties in (READABLE | BROKEN).items():
                assert client.publish(INGRESS, b"0", properties, b"{}", (0, 1, 0)) == CONFIRMED, name
                (found,) = await subscription.receive()
                message = found.message
                assert (message.body, message.user_id, found.offset) == (b"{}", "guest", None), name
                assert (UNREADABLE in message.headers) == (name in BROKEN), name
                await subscription.nack(found, requeue=False)
            assert client.publish(INGRESS, b"\xff\xfe", copied, b"{}") == CONFIRMED
            (found,) = await subscription.receive()
            assert (found.routing_key, found.message.headers["CC"]) == ("\ufffd\ufffd", ["0"])
            await subscription.ack(found)
            await bus.publish(Publication(INGRESS, "0", Message(b"{}", "good")))
            (good,) = await subscription.receive()
            assert good.message.message_id == "good"
            await subscription.ack(good)


async def test_a_gate_records_what_a_broker_confirms_and_keeps_its_shard(house: House, amqp_vhost_url: str) -> None:
    async with house.persister():
        with RawClient(amqp_vhost_url) as client:
            dead = await to_thread(publish_what_dies, client)
            await until(lambda: is_empty(house, gate_queue(0)))
            async with house.gate():
                await house.open_session()
                epochs = await house.count("shard_epochs")
                confirmed = await to_thread(publish_named, client, READABLE | BROKEN)
                confirmed |= await to_thread(publish_hostile, client, house.opening, 400)
                last = make_packet("red-1", make_idea("the gate goes on"), ("sentinel",), parent=house.opening)
                await house.agents.publish(last)
                await until(house.has_come_to("ROUTED", last.packet_id, ""))
                await until(lambda: is_empty(house, DEAD_QUEUE))
                await until(lambda: is_kept(house, {*dead, *confirmed}), 20)
                assert await house.count("shard_epochs") == epochs, "the gate has left its shard"
                assert await house.count("packet_conflicts", "kind = 'unjudgeable'") == 0
        kinds = await house.pool.fetch("SELECT kind, raw FROM apc_log.packet_conflicts")
    assert {row["raw"] for row in kinds if row["kind"] == "dead_input"} >= set(dead)
    properties = {one[:100] for one in BROKEN.values()}
    assert {row["raw"][:100] for row in kinds if row["kind"] == "unreadable"} >= properties


def publish_what_dies(client: RawClient) -> set[bytes]:
    """Publish messages that expire before a gate stands; return the bytes that the log must have of them."""
    found = set()
    for number, properties in enumerate((*DEEP.values(), *BROKEN.values())):
        flags, rest = int.from_bytes(properties[:2], "big"), properties[2:]
        at = len(rest) - len(GUEST) - (len(short(b"\xff" * 255)) if flags & MESSAGE_ID else 0)
        expiring = (flags | EXPIRATION).to_bytes(2, "big") + rest[:at] + short(b"1") + rest[at:]
        body = b"it dies %d" % number
        assert client.publish(INGRESS, b"0", expiring, body) == CONFIRMED
        found.add(body)
    # As much as a frame holds: no room for what a report says beside it.
    receipts = b"r" * 130_000
    long_one = told(short(b"apc-receipts") + b"S" + long(receipts), EXPIRATION, short(b"1"))
    assert client.publish(INGRESS, b"0", long_one, b"it dies with receipts") == CONFIRMED
    return found | {b"it dies with receipts"}


def publish_named(client: RawClient, cases: Mapping[str, bytes]) -> set[bytes]:
    """Publish each of these properties with a different body, which is returned; all are confirmed."""
    for exchange in (INGRESS, RECEIPTS):
        for name, properties in cases.items():
            assert client.publish(exchange, b"0", properties, name.encode()) == CONFIRMED, name
    return {name.encode() for name in cases}


def publish_hostile(client: RawClient, opening: Packet, count: int) -> set[bytes]:
    """Publish so many hostile messages; return the bytes of those that the broker has confirmed."""
    payloads = [
        make_idea(),
        AckPayload(acked_packet_id=opening.packet_id, ack_status=AckStatus.ACCEPTED),
        SignalPayload(signal=Signal.QUERY, reason="how is it?"),
    ]
    packets = [make_packet("red-1", payload, ("blue-1",), parent=opening) for payload in payloads]
    good = [
        Draft.of(Message(seal(one).body, str(one.packet_id), one.packet_type, user_id=client.user, headers=ODD))
        for one in (*packets, make_start(str(uuid4())))
    ]
    hostile = HostileMessages(good, Random(SEED), is_lawful=True)
    confirmed, refused = set(), 0
    for number in range(count):
        message = hostile.message()
        exchange = RECEIPTS if number % 5 == 0 else INGRESS
        if client.publish(exchange, message.key, message.properties, message.body, message.pieces) == CONFIRMED:
            confirmed.update(parts_of(message))
        else:
            refused += 1
    assert refused < count / 20, "nearly all are lawful"
    return confirmed


def parts_of(message: RawMessage) -> list[bytes]:
    """Return the bodies of which the log must have a trace: an empty array of receipts leaves none."""
    read = read_delivery(
        b"\0\x3c\0\x3c\0" + bytes(9) + b"\0\0", content(message.properties, message.body), message.body
    )
    return [one.body for one in unbundled(read.message) if one.body.strip() != b"[]"]


async def is_empty(house: House, queue: str) -> bool:
    return not (await house.agents.bus.depth(queue)).messages


async def is_kept(house: House, bodies: set[bytes]) -> bool:
    """Return whether the log has a row of each of these."""
    kept = {row["hash"] for row in await house.pool.fetch(KEPT)}
    return {sha256(body).digest() for body in bodies} <= kept

"""Properties that are no UTF-8 must not close the connection of the consumer, over and over."""

import aiormq
import pamqp.frame
import pytest
from aiormq.abc import ChannelFrame
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader
from pydantic import SecretStr

from apc_bus.headers import UNREADABLE
from apc_bus.port import Message, Publication
from apc_bus.rabbit import apply_rabbit, connect_rabbit
from apc_bus.rabbit.consuming.header_repair import repaired
from apc_bus.settings import BusSettings
from apc_bus.topology import INGRESS, build_topology, gate_queue

MARK = "REPLACED"


def header(**properties: object) -> bytes:
    """Return a content header in which the text REPLACED stands for bytes that are no UTF-8."""
    payload = ContentHeader(properties=Basic.Properties(**properties), body_size=2).marshal()  # type: ignore[arg-type]
    return payload.replace(MARK.encode(), b"\xff" * len(MARK))


@pytest.mark.parametrize(
    "properties",
    [
        {"message_id": MARK, "user_id": "guest"},
        {"message_type": MARK, "user_id": "guest", "delivery_mode": 2, "priority": 3},
        {"headers": {MARK: 1}, "user_id": "guest", "expiration": "100"},
        {"content_type": MARK, "timestamp": None, "app_id": "x", "user_id": "guest"},
    ],
)
def test_an_undecodable_header_keeps_the_user_id(properties: dict[str, object]) -> None:
    replacement = repaired(header(**properties))
    assert replacement is not None
    read = ContentHeader()
    read.unmarshal(replacement)
    assert read.body_size == 2
    assert read.properties.user_id == "guest"
    assert read.properties.headers == {UNREADABLE: True}
    assert read.properties.message_id is None


def test_a_header_without_user_id_has_none_after() -> None:
    replacement = repaired(header(message_id=MARK))
    assert replacement is not None
    read = ContentHeader()
    read.unmarshal(replacement)
    assert read.properties.user_id is None


@pytest.mark.parametrize(
    "properties", [{"message_id": "m", "message_type": "TASK_IR"}, {"headers": {"n": 200, "text": "größer"}}, {}]
)
def test_a_readable_header_is_left_alone(properties: dict[str, object]) -> None:
    assert repaired(header(**properties)) is None


async def test_the_consumer_lives_on(amqp_vhost_url: str) -> None:
    await apply_rabbit(amqp_vhost_url, build_topology())
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    async with bus.subscribe(gate_queue(0)) as subscription:
        await _publish_undecodable(amqp_vhost_url)
        (bad,) = await subscription.receive()
        assert bad.message == Message(b"{}", "", content_type="", user_id="guest", headers={UNREADABLE: True})
        await subscription.ack(bad)
        await bus.publish(Publication(INGRESS, "0", Message(b"{}", "good")))
        (good,) = await subscription.receive()
        assert good.message.message_id == "good"
        await subscription.ack(good)
    await bus.close()


async def _publish_undecodable(url: str) -> None:
    async with aiormq.connect(url) as connection:
        channel = await connection.channel()
        assert isinstance(channel, aiormq.Channel)
        publish = pamqp.frame.marshal(Basic.Publish(exchange=INGRESS, routing_key="0"), channel.number)
        payload = header(message_id=MARK, user_id="guest")
        head = bytes([2]) + channel.number.to_bytes(2, "big") + len(payload).to_bytes(4, "big")
        body = pamqp.frame.marshal(ContentBody(b"{}"), channel.number)
        await channel.write_queue.put(ChannelFrame(publish + head + payload + b"\xce" + body, should_close=False))
        await channel.queue_declare(gate_queue(0), passive=True)

"""A message that our own reader fails on: it ends its consumer, not the connection, and is set aside in the end."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from structlog.testing import capture_logs

from apc_bus.last_resort import ATTEMPTS, LastResort
from apc_bus.port import Delivery, Message, Publication
from apc_bus.rabbit import RabbitBus, apply_rabbit, connect_rabbit
from apc_bus.rabbit.decoding import read_delivery
from apc_bus.rabbit.raw import RawMessage
from apc_bus.settings import BusSettings
from apc_bus.topology import DEAD, DEAD_QUEUE, INTER_AGENT, SUBSTRATE, Topology, agent_queue

INBOX = agent_queue("alpha-1", urgent=False)
POISON = b"poison"


@pytest.fixture
async def bus(amqp_vhost_url: str, topology: Topology) -> AsyncIterator[RabbitBus]:
    await apply_rabbit(amqp_vhost_url, topology)
    bus = await connect_rabbit(BusSettings(amqp_url=SecretStr(amqp_vhost_url)))
    yield bus
    await bus.close()


@pytest.fixture
def fails_on_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(method: bytes, properties: bytes, body: bytes) -> Delivery:
        if body == POISON:
            raise RecursionError("maximum recursion depth exceeded")
        return read_delivery(method, properties, body)

    monkeypatch.setattr("apc_bus.rabbit.consumer.read_delivery", fail)


@pytest.mark.usefixtures("fails_on_poison")
async def test_it_ends_no_other_consumer_and_no_other_message(
    bus: RabbitBus, message: Callable[..., Message], tmp_path: Path
) -> None:
    bodies = (b"1", b"2", POISON, b"3", b"4")
    properties: dict[str, Any] = {"headers": {"deep": "1"}, "correlation_id": "c"}
    to_alpha = [Publication(INTER_AGENT, "idea.red.alpha-1", message(body, **properties)) for body in bodies]
    await bus.publish_all(to_alpha)
    resort, failures = LastResort(tmp_path), 0
    done: list[bytes] = []
    set_aside: list[Delivery] = []
    async with bus.subscribe(DEAD_QUEUE) as neighbour:
        while len(done) + len(set_aside) < len(bodies):
            try:
                async with bus.subscribe(INBOX, watch=resort.watch(bus, INBOX)) as inbox:
                    while len(done) + len(set_aside) < len(bodies):
                        for one in await inbox.receive():
                            await inbox.ack(one)
                            if one.set_aside is None:
                                done.append(one.message.body)
                            else:
                                set_aside.append(one)
            except RecursionError:
                failures += 1
        # The same connection, and the same channel of it, as before.
        await bus.publish(Publication(DEAD, "", message(b"still there")))
        (letter,) = await neighbour.receive()
        assert letter.message.body == b"still there"
        await neighbour.ack(letter)
    assert failures == 1 + ATTEMPTS
    assert sorted(done) == [b"1", b"2", b"3", b"4"]
    (found,) = set_aside
    assert (found.message.body, found.message.user_id, found.message.headers) == (POISON, "guest", {})
    assert found.set_aside is not None and found.set_aside.properties is not None
    assert b"deep" in found.set_aside.properties


@pytest.mark.usefixtures("fails_on_poison")
async def test_a_reader_of_the_substrate_passes_over_it(bus: RabbitBus, message: Callable[..., Message]) -> None:
    for body in (b"1", POISON, b"2"):
        await bus.publish(Publication(SUBSTRATE, "", message(body)))
    heard: list[bytes] = []
    with capture_logs() as logs:
        async with bus.read_substrate("first") as stream:
            while len(heard) < 2:
                heard += [one.message.body for one in await stream.receive()]
    assert heard == [b"1", b"2"]
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["stream_message_unreadable"]


def test_a_fingerprint_leaves_out_what_the_broker_counts() -> None:
    body, method = b"{}", b"\0\x3c\0\x3c" + b"\x03tag" + bytes(7) + b"\x01" + b"\0" + b"\x01x" + b"\x01k"
    again = method.replace(b"tag", b"gat").replace(bytes(7) + b"\x01\0", bytes(7) + b"\x09\x01")
    entries = b"\x01aS\0\0\0\x01b"
    counted = entries + b"\x10x-delivery-countl" + bytes(7) + b"\x05"

    def properties(table: bytes, message_id: bytes = b"m-1") -> bytes:
        fields = b"\x04text" + len(table).to_bytes(4, "big") + table + bytes([len(message_id)]) + message_id
        return b"\0\x3c\0\0" + len(body).to_bytes(8, "big") + (1 << 15 | 1 << 13 | 1 << 7).to_bytes(2, "big") + fields

    first = RawMessage(method, properties(entries), body)
    assert not first.is_redelivered
    second = RawMessage(again, properties(counted), body)
    assert second.is_redelivered and (first.tag, second.tag) == (1, 9)
    assert first.fingerprint == second.fingerprint
    others = [
        RawMessage(method, properties(entries), b"[]"),
        RawMessage(method, properties(entries, b"m-2"), body),
        RawMessage(method, properties(entries[:-1] + b"c"), body),
        RawMessage(method[:-1] + b"l", properties(entries), body),
        RawMessage(method, b"", body),
    ]
    assert len({one.fingerprint for one in (first, *others)}) == 6

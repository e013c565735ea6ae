"""Oversize bodies of clients without the SDK (matrix row 22): refused by the gate, or by the broker; others go on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from tests.integration.conftest import House
from tests.support.servers import PrivateNode
from tests.support.traffic import make_idea, make_packet, until
from yarl import URL

from apc_bus.topology import INGRESS
from apc_contracts import Packet, seal

pytestmark = pytest.mark.faults
SHIPPED = (Path(__file__).parents[3] / "deploy" / "rabbitmq.conf").read_text()
OTHERS, TOO_LARGE_FOR_THE_GATE, TOO_LARGE_FOR_THE_BROKER = 200, 10, 10
QUARANTINED = "SELECT kind, code, octet_length(raw) AS size FROM apc_log.packet_conflicts"


@pytest.fixture
def amqp_vhost_url() -> Iterator[str]:
    """A node with the configuration that we ship."""
    with PrivateNode(SHIPPED) as node:
        yield node.url()


def padded(packet: Packet, size: int) -> bytes:
    """Return the packet's bytes, made as large as this by blanks, which JSON allows."""
    body = seal(packet).body
    return body + b" " * (size - len(body))


async def publish_raw(url: str, packet: Packet, body: bytes) -> None:
    """As a client of another language, on its own connection. Raises what the broker says."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel(on_return_raises=True)
        ingress = await channel.get_exchange(INGRESS, ensure=False)
        message = aio_pika.Message(
            body, message_id=str(packet.packet_id), type=packet.packet_type.value, user_id=URL(url).user
        )
        await ingress.publish(message, "0")


async def test_oversize_bodies_are_refused_and_the_gate_goes_on(
    house: House, amqp_vhost_url: str, exercised: Callable[..., None]
) -> None:
    def an_idea() -> Any:
        return make_packet("red-1", make_idea(), parent=house.opening)

    for_gate = [an_idea() for _ in range(TOO_LARGE_FOR_THE_GATE)]
    for_broker = [an_idea() for _ in range(TOO_LARGE_FOR_THE_BROKER)]
    others = [an_idea() for _ in range(OTHERS)]
    refused_by_broker = 0
    async with house.persister(), house.gate():
        await house.open_session()
        share = OTHERS // TOO_LARGE_FOR_THE_BROKER
        for number, (large, larger) in enumerate(zip(for_gate, for_broker, strict=True)):
            await publish_raw(amqp_vhost_url, large, padded(large, 256 * 1024 + 1))
            with pytest.raises(aio_pika.exceptions.ChannelPreconditionFailed, match="larger than configured max size"):
                await publish_raw(amqp_vhost_url, larger, padded(larger, 2 * 1024 * 1024 + 1))
            refused_by_broker += 1
            await house.agents.publish(*others[number * share : (number + 1) * share])
        await until(house.is_logged(*(packet.packet_id for packet in others)))

        async def are_in_quarantine() -> bool:
            return bool(await house.count("packet_conflicts") == TOO_LARGE_FOR_THE_GATE)

        await until(are_in_quarantine)
        accepted = await house.count("agent_packets", "packet_type = 'IDEA' AND verdict = 'accepted'")
    exercised(
        "too large for the gate, or for the broker",
        packets=OTHERS,
        injected=TOO_LARGE_FOR_THE_GATE + refused_by_broker,
        lost=OTHERS - accepted,
    )
    kept = await house.pool.fetch(QUARANTINED)
    assert {(row["kind"], row["code"], row["size"]) for row in kept} == {("unreadable", "TOO_LARGE", 4096)}
    assert refused_by_broker == TOO_LARGE_FOR_THE_BROKER
    assert accepted == OTHERS, "no row of an oversize body, and each of the others"

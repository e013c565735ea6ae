"""A FastStream application beside the bus: it takes orders from its own queue, and asks an agent about each.

It runs on the same broker under the broker user of an agent that is registered (`apc agent add desk-1 …`), so that the
gate knows who speaks. Run it with `faststream run examples.faststream_beside:app`, and set DESK_AMQP_URL.
"""

import os
from datetime import UTC, datetime

from faststream import FastStream
from faststream.rabbit import QueueType, RabbitBroker, RabbitExchange, RabbitQueue
from pydantic import BaseModel

from apc_contracts import Actor, IdeaPayload, Packet, Recipient, Routing, Trace, new_packet_id, seal
from apc_contracts.identity.ids import slot_of
from apc_contracts.packet import IdeaPacket
from apc_contracts.payloads.by_type import ExpectedImpact
from apc_contracts.vocabulary import PROTOCOL_VERSION, Channel, DeliveryMode, PacketType, RunPhase

DESK = Actor(agent_id="desk-1", role="desk", swarm_id="sales")

broker = RabbitBroker(os.environ.get("DESK_AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/"))
app = FastStream(broker)
orders = RabbitQueue("orders", queue_type=QueueType.QUORUM, durable=True)
ingress = RabbitExchange("apc.ingress", declare=False)
"""The bus's own exchanges are never declared here: the broker user may not."""


class Order(BaseModel):
    """An order, and the open session that it belongs to."""

    order_id: str
    session_id: str
    text: str


@broker.subscriber(orders)
async def take(order: Order) -> None:
    """Publish the order as a packet; the order is acknowledged when the broker has confirmed the packet."""
    sealed = seal(packet_of(order))
    await broker.publish(
        sealed.body,
        exchange=ingress,
        routing_key=str(slot_of(order.session_id)),
        message_id=str(sealed.packet.packet_id),
        message_type=PacketType.IDEA.value,
        correlation_id=str(sealed.packet.trace.root_packet_id),
        content_type="application/json",
        user_id=broker_user(),
        persist=True,
        mandatory=True,
    )


def packet_of(order: Order) -> Packet:
    """Return the packet that asks `reviewer-1` about an order."""
    packet_id = new_packet_id()
    return IdeaPacket(
        protocol_version=PROTOCOL_VERSION,
        packet_id=packet_id,
        packet_type=PacketType.IDEA,
        channel=Channel.INTER_AGENT,
        run_phase=RunPhase.RESEARCH,
        created_at=datetime.now(UTC),
        sender=DESK,
        recipients=(Recipient(agent_id="reviewer-1"),),
        trace=Trace(
            session_id=order.session_id,
            run_id=f"run-{order.session_id}",
            task_id="orders",
            root_packet_id=packet_id,
            generation=0,
            step=0,
        ),
        routing=Routing(delivery_mode=DeliveryMode.DIRECT, priority=4, ttl_ms=60_000, requires_ack=False),
        confidence=0.5,
        symbolic_keys=("order",),
        payload=IdeaPayload(
            method_id=f"order-{order.order_id}",
            intent=order.text,
            assumptions=(),
            required_capabilities=(),
            expected_impact=ExpectedImpact(quality_gain=0.0, cost_change=0.0, risk_change=0.0),
            failure_modes=(),
        ),
    )


def broker_user() -> str:
    """Return the user of the connection: the broker refuses any other user_id."""
    return os.environ.get("DESK_USER", "guest")

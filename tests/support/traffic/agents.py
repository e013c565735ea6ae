"""Scripted agents, all of one broker user: what they publish, receive and report."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tests.support.traffic.packets import AGENTS, ROLE, SESSION, Cast

from apc_bus import headers
from apc_bus.port import Bus, Delivery, Message, Publication
from apc_bus.topology import INGRESS, RECEIPTS, AgentQueues, agent_queue
from apc_contracts.identity.ids import new_packet_id, slot_of
from apc_contracts.identity.registry import ANY_SCHEMA
from apc_contracts.identity.registry_change import AgentAdded, encode_registry_change
from apc_contracts.packet import Packet
from apc_contracts.vocabulary import PROTOCOL_VERSIONS, PacketType
from apc_contracts.wire.parsing import seal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts

HANDLED = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)
"""The receipts of a delivery that was handled."""


class ScriptedAgents:
    """A cast of scripted agents on a bus, whose user is the broker user of all of them."""

    def __init__(self, bus: Bus, cast: Cast = AGENTS, shards: int = 1) -> None:
        self.bus = bus
        self.cast = cast
        self._shards = shards

    @property
    def queues(self) -> list[AgentQueues]:
        """Return the inboxes that the topology needs; every agent handles every type."""
        return [
            AgentQueues(agent_id, swarm, frozenset(PacketType), self.bus.user)
            for agent_id, (swarm, _) in self.cast.items()
        ]

    def registration(self, agent_id: str, **fields: Any) -> AgentAdded:
        """Return the change that registers an agent of the cast; `fields` override others, such as `public_keys`."""
        swarm, rights = self.cast[agent_id]
        return AgentAdded(
            change_id=uuid4(),
            agent_id=agent_id,
            broker_user=self.bus.user,
            role=ROLE,
            swarm_id=swarm,
            rights=rights,
            handles=tuple(PacketType),
            schemas=(ANY_SCHEMA,),
            speaks=PROTOCOL_VERSIONS,
            **fields,
        )

    async def register(self, users: Mapping[str, str] | None = None) -> None:
        """Send the registrations to every shard, as the operator does.

        `users` names the broker user of each agent that does not share the cast's.
        """
        for agent_id in self.cast:
            user = (users or {}).get(agent_id, self.bus.user)
            body = encode_registry_change(self.registration(agent_id).model_copy(update={"broker_user": user}))
            for shard in range(self._shards):
                message = Message(body, str(uuid4()), type=headers.TYPE_REGISTRY, user_id=self.bus.user)
                await self.bus.publish(Publication(RECEIPTS, str(shard), message))

    def publication(self, packet: Packet, **properties: Any) -> Publication:
        """Return the publication of a packet to its slot.

        `properties` override those of its message, `body` its bytes.
        """
        slot = str(slot_of(packet.trace.session_id))
        fields: dict[str, Any] = {
            "body": None,
            "message_id": str(packet.packet_id),
            "type": packet.packet_type.value,
            "correlation_id": str(packet.trace.root_packet_id),
            "user_id": self.bus.user,
        } | properties
        if fields["body"] is None:
            fields["body"] = seal(packet).body
        return Publication(INGRESS, slot, Message(**fields))

    async def publish(self, *packets: Packet, **properties: Any) -> None:
        """Publish packets in order, each confirmed. Raises what `Bus.publish` raises."""
        for result in await self.bus.publish_all([self.publication(one, **properties) for one in packets]):
            if result is not None:
                raise result

    async def report(
        self,
        agent: str,
        packet_ids: Sequence[UUID],
        *kinds: ReceiptKind,
        attempt: int = 1,
        session_id: str = SESSION,
        after_ms: int | None = None,
    ) -> None:
        """Send receipts of deliveries, by default those of a handled delivery. `after_ms` goes with a `retry`."""
        found = [
            Receipt(
                packet_id=packet_id,
                session_id=session_id,
                recipient=agent,
                kind=kind,
                attempt=attempt,
                at=datetime.now(UTC),
                after_ms=after_ms if kind is ReceiptKind.RETRY else None,
            )
            for packet_id in packet_ids
            for kind in kinds or HANDLED
        ]
        body, slot = encode_receipts(found), slot_of(session_id)
        message = Message(body, str(new_packet_id()), type=headers.TYPE_RECEIPTS, user_id=self.bus.user)
        await self.bus.publish(Publication(RECEIPTS, str(slot), message))

    async def receive(self, agent: str, count: int = 1, *, urgent: bool = False) -> list[Delivery]:
        """Wait for `count` deliveries in an agent's queue, acknowledge and return them."""
        found: list[Delivery] = []
        async with self.bus.subscribe(agent_queue(agent, urgent), prefetch=count) as inbox:
            while len(found) < count:
                for delivery in await inbox.receive(count - len(found)):
                    await inbox.ack(delivery)
                    found.append(delivery)
        return found

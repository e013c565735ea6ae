"""The messages that the product sends, of every kind, to be made hostile."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tests.contracts.conftest import _document
from tests.support.hostile_messages import Draft, entry
from tests.support.log.entries import hop, packet_entry, session_row
from tests.support.traffic.packets import AGENTS, ROLE, make_idea, make_packet, make_start

from apc_bus import headers
from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.rabbit.bundles import bundled
from apc_bus.topology import INGRESS, agent_queue
from apc_contracts import AckPayload, NackPayload, Packet, PacketType, SignalPayload, seal
from apc_contracts.identity.registry import ANY_SCHEMA
from apc_contracts.identity.registry_change import AgentAdded, AgentRevoked, AnyChange, encode_registry_change
from apc_contracts.vocabulary import PROTOCOL_VERSIONS, AckStatus, Signal
from apc_contracts.wire.receipts import Receipt, ReceiptKind, encode_receipts
from apc_log.batch import (
    CONTENT_TYPE,
    EPOCH_OPEN_TYPE,
    LOG_BATCH_TYPE,
    LOG_BATCH_VERSION,
    EpochOpen,
    LogBatch,
    OpeningBatch,
    encode,
)

NOTHING: Mapping[str, HeaderValue] = {}
ORCHESTRATOR, OPERATOR = "orchestrator", "operator"
DELIVERED: dict[str, HeaderValue] = {
    headers.SHARD: 0,
    headers.EPOCH: 3,
    headers.BATCH: 7,
    headers.MARK: "2.9",
    headers.ATTEMPT: 1,
    headers.STATE_STEP: 5,
    headers.PHASE: "RESEARCH",
    headers.ROUND: 1,
    headers.GENERATION: 0,
    headers.CONTRACT: "standard",
    headers.RIGHTS: "operate,veto",
}
TRACED: dict[str, HeaderValue] = {
    headers.TRACEPARENT: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    headers.TRACESTATE: "a=b",
}


def registrations() -> list[AgentAdded]:
    """Return the changes that register the cast, each agent with its own broker user."""
    return [
        AgentAdded(
            change_id=uuid4(),
            agent_id=agent_id,
            broker_user=f"agent.{agent_id}",
            role=ROLE,
            swarm_id=swarm,
            rights=rights,
            handles=tuple(PacketType),
            schemas=(ANY_SCHEMA,),
            speaks=PROTOCOL_VERSIONS,
        )
        for agent_id, (swarm, rights) in AGENTS.items()
    ]


def packets(opening: Packet) -> list[Packet]:
    """Return packets that the gate takes, or refuses by its contract."""
    payloads = (
        make_idea(),
        AckPayload(acked_packet_id=opening.packet_id, ack_status=AckStatus.ACCEPTED),
        SignalPayload(signal=Signal.QUERY, reason="how is it?"),
    )
    return [make_packet("red-1", one, ("blue-1", "sentinel"), parent=opening) for one in payloads] + [make_start("s-2")]


def documents() -> list[bytes]:
    """Return a body of each packet type."""
    return [json.dumps(_document(one)).encode() for one in PacketType]


def receipts_of(packet_id: UUID, recipient: str = "sentinel") -> bytes:
    """Return receipts for a delivery."""
    kinds = (ReceiptKind.DELIVERY_ACK, ReceiptKind.CONSUMER_APPLY, ReceiptKind.OUTCOME)
    now = datetime.now(UTC)
    return encode_receipts(
        [
            Receipt(packet_id=packet_id, session_id="s-1", recipient=recipient, kind=kind, attempt=1, at=now)
            for kind in kinds
        ]
    )


def sent(packet: Packet, user: str = "agent.red-1", told: Mapping[str, HeaderValue] = NOTHING) -> Message:
    """Return a packet as an agent sends it to the gate."""
    root = str(packet.trace.root_packet_id)
    return Message(seal(packet).body, str(packet.packet_id), packet.packet_type, root, user, headers=told)


def for_gate(opening: Packet) -> list[Draft]:
    """Return what comes to a gate: packets, bundles, receipts, registry changes, dead inputs, retries."""
    receipts = receipts_of(opening.packet_id)
    told = TRACED | {headers.CAUSE: str(opening.packet_id), headers.ORDINAL: 1, headers.SIGNATURE: "k1:" + "A" * 86}
    messages = [sent(one, told=told) for one in packets(opening)]
    bundle = bundled([Publication(INGRESS, "0", one) for one in messages])[0].publication.message
    changes: list[AnyChange] = [*registrations(), AgentRevoked(change_id=uuid4(), agent_id="blue-1")]
    died: dict[str, HeaderValue] = {
        headers.DIED_IN: "apc.gate.0",
        headers.DIED_OF: "expired",
        headers.DIED_USER: "agent.red-1",
        headers.DIED_ID: str(uuid4()),
    }
    return [
        *map(Draft.of, messages),
        *(Draft.of(sent(one, told={headers.RECEIPTS: receipts.decode()})) for one in packets(opening)),
        *(Draft.of(Message(body, str(uuid4()), "IDEA", user_id="agent.red-1")) for body in documents()),
        Draft.of(bundle),
        *(Draft.of(Message(receipts, str(uuid4()), headers.TYPE_RECEIPTS, user_id=f"agent.{one}")) for one in AGENTS),
        *(
            Draft.of(Message(encode_registry_change(one), str(one.change_id), headers.TYPE_REGISTRY, user_id=user))
            for one in changes
            for user in (OPERATOR, "agent.red-1")
        ),
        Draft.of(Message(b"dead", str(uuid4()), headers.TYPE_DEAD_INPUT, user_id=ORCHESTRATOR, headers=died)),
    ]


def delivered(packet: Packet, **told: HeaderValue) -> Message:
    """Return a packet as a gate delivers it."""
    root = str(packet.trace.root_packet_id)
    head = {name: value for name, value in (DELIVERED | told).items() if value is not None}
    return Message(
        seal(packet).body, str(packet.packet_id), packet.packet_type, root, ORCHESTRATOR, 60_000, headers=head
    )


def for_worker(opening: Packet) -> list[Draft]:
    """Return what comes to an inbox: deliveries of a gate, its NACKs, and whatever else its user may send."""
    rejection = NackPayload(acked_packet_id=opening.packet_id, ack_status=AckStatus.REJECTED, reason="r")
    nack = make_packet("librarian", rejection, ("sentinel",))
    found = [delivered(one, **TRACED) for one in (*packets(opening), opening, nack)]
    found += [Message(body, str(uuid4()), "IDEA", None, ORCHESTRATOR, headers=DELIVERED) for body in documents()]
    return [*map(Draft.of, found), Draft.of(sent(opening, user="agent.sentinel"))]


def with_death(draft: Draft, queue: str, reason: str) -> Draft:
    """Return a message as a broker hands it over once it has died in a queue."""
    death = {"count": 1, "reason": reason, "queue": queue, "exchange": INGRESS, "routing-keys": ["0"]}
    told = {"x-death": [death], "x-first-death-queue": queue, "x-first-death-reason": reason}
    draft.entries += [entry(name.encode(), value) for name, value in told.items()]
    return draft


def dead(opening: Packet) -> list[Draft]:
    """Return what comes to the dead queue: inputs, deliveries, log batches, retries."""
    return [
        *(with_death(one, "apc.gate.0", "expired") for one in for_gate(opening)),
        *(with_death(one, agent_queue("sentinel", False), "rejected") for one in for_worker(opening)),
        *(with_death(one, "apc.log.0", "delivery_limit") for one in for_log()),
    ]


def for_log() -> list[Draft]:
    """Return what comes to a log writer: batches, with and without contracts, and openings of epochs."""
    packet = packet_entry()
    entries: Sequence[Any] = (packet, hop(packet, ["ROUTE"], "RECEIVED", "ROUTED"))
    parts = (LOG_BATCH_VERSION, 0, 1, 1, datetime.now(UTC), list(entries), [session_row("session-1")])
    holder = uuid4()
    written = [
        (LOG_BATCH_TYPE, encode(LogBatch(*parts))),
        (LOG_BATCH_TYPE, encode(OpeningBatch(*parts, [b"{}"]))),
        (EPOCH_OPEN_TYPE, encode(EpochOpen(LOG_BATCH_VERSION, 0, holder, b"{}"))),
    ]
    return [
        Draft.of(Message(body, f"{holder}.{number}", kind, user_id=ORCHESTRATOR, content_type=CONTENT_TYPE))
        for number, (kind, body) in enumerate(written)
    ]

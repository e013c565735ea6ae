"""A packet as the gate hands it to this worker, with what its headers say."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import msgspec

from apc_agents.receiving.dedupe import DeliveryKey
from apc_agents.receiving.shared_packets import SharedPackets
from apc_agents.session_phase import SessionPosition
from apc_bus import headers
from apc_bus.last_resort import Risk
from apc_bus.port import HeaderValue, Message
from apc_bus.telemetry import LogIds
from apc_bus.tracing import NO_TRACE, TraceHeaders
from apc_contracts.identity.ids import reply_id
from apc_contracts.identity.registry import Right
from apc_contracts.packet import NackPacket, Packet
from apc_contracts.vocabulary import ORCHESTRATOR, PacketType, RunPhase
from apc_contracts.wire.parsing import parse_checked_packet, parse_packet

_delivered = SharedPackets(parse_checked_packet)
"""Of all agents in this process."""


class DeliveryHeaders(msgspec.Struct, frozen=True):
    """The gate's headers of one delivery."""

    shard: int
    epoch: int
    batch_no: int
    mark: tuple[int, int] | None
    """None on the gate's NACKs, which belong to no batch."""
    attempt: int
    moment: SessionPosition | None
    """None when the gate holds no such session."""
    rights: frozenset[Right] = frozenset()
    """Those of the packet's sender."""


@dataclass(slots=True, eq=False)
class Inbound:
    """A packet that waits for its handler, or is in it."""

    packet: Packet
    attempt: int
    shard: int
    has_receipts: bool
    """False for what has no lifecycle at the gate: its NACKs, and packets between the agent's own modules."""
    is_urgent: bool
    trace: TraceHeaders = field(default_factory=lambda: NO_TRACE)
    """The trace that the packet belongs to."""
    rights: frozenset[Right] = frozenset()
    """The sender's, as the gate knows them."""
    risk: Risk | None = None
    """Of a packet that is handled alone: former workers ended without explanation (`apc_bus.last_resort`)."""
    is_heard: bool = False
    """Read from the substrate, not delivered to this agent."""
    done: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Ends when the delivery may be acknowledged, or fails with what the broker shall do instead."""

    @property
    def key(self) -> DeliveryKey:
        """(packet_id, attempt)."""
        return (self.packet.packet_id, self.attempt)

    @property
    def session_id(self) -> str:
        """The packet's session."""
        return self.packet.trace.session_id

    def log_ids(self) -> LogIds:
        """Return what every line says that is logged while it is handled."""
        return {
            "packet_id": str(self.packet.packet_id),
            "session_id": self.session_id,
            "run_id": self.packet.trace.run_id,
            "attempt": self.attempt,
        }


def read_body(message: Message) -> Packet:
    """Return the packet of a message, strictly read by the gate or else here.

    The broker compares user_id with the publisher's login, and gives no agent the orchestrator's user: what has that
    user_id is what a gate has read strictly, byte for byte. Anything else is read strictly here.

    Raises:
        PacketRefused: bytes that are no packet.
    """
    if message.user_id == ORCHESTRATOR:
        return _delivered.read(message.message_id, message.body)
    return parse_packet(message.body)


def read_headers(values: Mapping[str, HeaderValue]) -> DeliveryHeaders | None:
    """Return the gate's headers; None when the message carries no epoch. Raises ValueError for what cannot be read."""
    if headers.UNREADABLE in values:
        raise ValueError("its AMQP properties cannot be read")
    if headers.EPOCH not in values:
        return None
    return DeliveryHeaders(
        shard=_number(values, headers.SHARD),
        epoch=_number(values, headers.EPOCH),
        batch_no=_number(values, headers.BATCH),
        mark=None if values.get(headers.MARK) is None else _fencing_token(str(values[headers.MARK])),
        attempt=_number(values, headers.ATTEMPT, 1),
        moment=_position(values) if headers.STATE_STEP in values else None,
        rights=_rights(str(values.get(headers.RIGHTS) or "")),
    )


def is_refusal(packet: Packet) -> bool:
    """Return whether this is the gate's own NACK of a refused packet: no log entry, so it has no lifecycle."""
    return (
        packet.packet_type is PacketType.NACK
        and isinstance(packet, NackPacket)
        and packet.sender.agent_id == ORCHESTRATOR
        and packet.packet_id == reply_id(packet.payload.acked_packet_id, ORCHESTRATOR, "nack")
    )


# Cached: one delivery after another says the same.
@lru_cache(64)
def _fencing_token(value: str) -> tuple[int, int]:
    epoch, _, batch_no = value.partition(".")
    return int(epoch), int(batch_no)


@lru_cache(64)
def _rights(value: str) -> frozenset[Right]:
    """Return those that this version knows: a later gate may know more."""
    named = value.split(",")
    return frozenset(right for right in Right if right.value in named)


def _position(values: Mapping[str, HeaderValue]) -> SessionPosition:
    return _session_position(
        _number(values, headers.STATE_STEP),
        str(values.get(headers.PHASE, RunPhase.RESEARCH)),
        _number(values, headers.ROUND),
        _number(values, headers.GENERATION),
        str(values.get(headers.CONTRACT, "")),
    )


@lru_cache(1024)
def _session_position(step: int, phase: str, round_: int, generation: int, contract: str) -> SessionPosition:
    return SessionPosition(step, RunPhase(phase), round_, generation, contract)


def _number(values: Mapping[str, HeaderValue], name: str, default: int = 0) -> int:
    value = values.get(name, default)
    return value if type(value) is int else int(str(value))

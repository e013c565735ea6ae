"""Serialise a packet once: the canonical bytes are the message body and never change.

Source: docs/specification/contract.md section 2.
"""

from dataclasses import dataclass
from hashlib import sha256

from apc_contracts.envelope.packet import Packet
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.payloads.by_type import Payload
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.strict_json import read_strict_json


@dataclass(frozen=True, slots=True)
class SealedPacket:
    """A packet with its bytes. `packet_hash` is the SHA-256 of `body`."""

    packet: Packet
    body: bytes
    packet_hash: bytes


def seal(packet: Packet, limits: DocumentLimits = DEFAULT_LIMITS) -> SealedPacket:
    """Return the packet's RFC 8785 bytes; optional fields that are None are left out.

    Raises:
        PacketRefused: TOO_LARGE, TOO_DEEP or MALFORMED: what every receiver would refuse is never sent.
    """
    body = canonical_json(packet.model_dump(mode="json", exclude_none=True))
    read_strict_json(body, limits)
    return SealedPacket(packet, body, sha256(body).digest())


def payload_hash(payload: Payload) -> str:
    """Return the lower-case hex SHA-256 of the canonical payload, as endorsements in `proof_bundle` name it."""
    return sha256(canonical_payload(payload)).hexdigest()


def canonical_payload(payload: Payload) -> bytes:
    """Return the RFC 8785 bytes of a payload; optional fields that are None are left out, times are in UTC."""
    return canonical_json(payload.model_dump(mode="json", exclude_none=True))

"""From bytes to a packet: the only parser (docs/specification/contract.md section 12).

The order is fixed: size, levels, strict JSON, nodes, then the schema. Every failure is a PacketRefused with one code,
one path and one sentence that names the remedy.
"""

from hashlib import sha256
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from apc_contracts.envelope.packet import AnyPacket, Packet
from apc_contracts.limits import DEFAULT_LIMITS, DocumentLimits
from apc_contracts.vocabulary import PacketType
from apc_contracts.wire.canonical import canonical_json
from apc_contracts.wire.schema_errors import refusal_of
from apc_contracts.wire.sealing import canonical_payload
from apc_contracts.wire.strict_json import read_strict_json

_TAGS = frozenset(PacketType)
_adapter: TypeAdapter[Packet] = TypeAdapter(AnyPacket)
# The bound method saves one call per packet.
_validate_json = _adapter.validator.validate_json


class ReceivedPacket(msgspec.Struct, frozen=True):
    """A packet with the exact bytes it came in.

    Both hashes are SHA-256: `packet_hash` of the bytes, `payload_hash` of the canonical payload.
    """

    packet: Packet
    body: bytes
    packet_hash: bytes
    payload_hash: bytes


def parse_packet(body: bytes, limits: DocumentLimits = DEFAULT_LIMITS) -> Packet:
    """Return the packet in `body`, as one of the concrete classes.

    Raises:
        PacketRefused: TOO_LARGE, TOO_DEEP, MALFORMED or SCHEMA_INVALID, the first that applies in the order
            of docs/specification/contract.md section 12.
    """
    read_strict_json(body, limits)
    return _validate(body)


def parse_checked_packet(body: bytes) -> Packet:
    """Return the packet in bytes that a gate has read strictly already; only the schema is looked at again.

    A key that stands twice counts as its last, and no limit holds: use it only for what certainly came from a gate.

    Raises:
        PacketRefused: MALFORMED or SCHEMA_INVALID.
    """
    return _validate(body)


def read_packet(body: bytes, limits: DocumentLimits = DEFAULT_LIMITS) -> ReceivedPacket:
    """Return the packet as parse_packet does, with the hashes of the received bytes and of the canonical payload."""
    tree = read_strict_json(body, limits)
    packet = _validate(body)
    # A null or a time may be written differently from how the model writes it: then the model's form counts.
    payload: dict[str, Any] = tree["payload"]
    canonical = canonical_payload(packet.payload) if _may_differ(body, payload) else canonical_json(payload)
    return ReceivedPacket(packet, body, sha256(body).digest(), sha256(canonical).digest())


def _may_differ(body: bytes, payload: dict[str, Any]) -> bool:
    return b"null" in body or "expected_response_by" in payload


def _validate(body: bytes) -> Packet:
    try:
        # by_name would let JSON say `passed` where the contract says `pass`.
        packet: Packet = _validate_json(body, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise refusal_of(error, _TAGS, has_metadata=True) from error
    return packet

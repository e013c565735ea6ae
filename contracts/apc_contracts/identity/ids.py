"""Ids that a process derives again after a crash, and the shard that owns a session.

Source: docs/specification/contract.md section 9.
"""

import os
import time
from hashlib import sha256
from uuid import NAMESPACE_URL, UUID, uuid5
from zlib import crc32

_RFC_9562_VARIANT = 0x80
_VERSION_7 = 0x70
_VERSION_8 = 0x80
_OWNER_BYTES = 6


def new_packet_id() -> UUID:
    """Return a new UUIDv7, for a packet without a cause. Source: RFC 9562 section 5.7.

    ```python
    assert new_packet_id().version == 7 and new_packet_id() != new_packet_id()
    ```
    """
    octets = bytearray((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10))
    octets[6] = octets[6] & 0x0F | _VERSION_7
    octets[8] = octets[8] & 0x3F | _RFC_9562_VARIANT
    return UUID(bytes=bytes(octets))


NACK_ORDINAL = "nack"
ACCEPTANCE_ORDINAL = "accepted"
"""Ordinals of the orchestrator's answers to a sender; they have no entry in the log."""


def reply_id(cause: UUID, agent_id: str, ordinal: int | str) -> UUID:
    """Return the id of an agent's packet number `ordinal` under this cause; a second run derives the same.

    ```python
    assert reply_id(packet_id, "cashier", 0) == reply_id(packet_id, "cashier", 0) != reply_id(packet_id, "cashier", 1)
    ```
    """
    return uuid5(cause, f"{agent_id}/{ordinal}")


def keyed_id(owner: str, *parts: str) -> UUID:
    """Return the id of what a key of this owner names: a UUIDv8. Source: RFC 9562 section 5.8.

    It begins with 48 bits of the owner's SHA-256, so that the gate can tell a packet that has the id of another agent's
    key. The rest is of the SHA-256 of all parts.
    """
    octets = bytearray(_owner_prefix(owner) + sha256("\0".join((owner, *parts)).encode()).digest()[_OWNER_BYTES:16])
    octets[6] = octets[6] & 0x0F | _VERSION_8
    octets[8] = octets[8] & 0x3F | _RFC_9562_VARIANT
    return UUID(bytes=bytes(octets))


def is_key_of(packet_id: UUID, agent_id: str) -> bool:
    """Return whether this is a UUIDv8 that a key of this agent names."""
    return packet_id.version == _VERSION_8 >> 4 and packet_id.bytes.startswith(_owner_prefix(agent_id))


def is_key_of_another(packet_id: UUID, agent_id: str) -> bool:
    """Return whether this is a UUIDv8 that no key of this agent names."""
    return packet_id.version == _VERSION_8 >> 4 and not packet_id.bytes.startswith(_owner_prefix(agent_id))


def _owner_prefix(owner: str) -> bytes:
    return sha256(owner.encode()).digest()[:_OWNER_BYTES]


def timer_id(session_id: str, step: int, kind: str) -> UUID:
    """Return the id of the orchestrator's timer packet.

    ```python
    assert timer_id("s-1", 4, "wall") == timer_id("s-1", 4, "wall")
    ```

    `kind` is `generation`, `state`, `veto`, `wall` or `ack:<packet_id>:<attempt>`.
    """
    return uuid5(NAMESPACE_URL, f"apc:{session_id}/{step}/{kind}")


SLOTS = 256
"""Slots into which sessions are divided, whatever the number of shards; a slot is the routing key of its sessions."""
NUMBERS_OF_SHARDS = (1, 2, 4, 8, 16, 32, 64, 128, SLOTS)
"""Into how many shards the slots can be divided."""


def slot_of(session_id: str) -> int:
    """Return the slot, 0 to 255, of a session: CRC-32 (ISO-HDLC) of its id modulo 256.

    ```python
    assert slot_of("s-1") % 8 == shard_of("s-1", 8)
    ```

    The slot in decimal is the routing key of the session's packets and receipts. Shard k of N has the slots s with
    s mod N = k, so k itself is one of them.
    """
    return crc32(session_id.encode()) % SLOTS


def shard_of(session_id: str, shards: int) -> int:
    """Return the shard, 0..shards-1, that owns a session: CRC-32 (ISO-HDLC) of its id modulo `shards`.

    ```python
    assert shard_of("s-1", 1) == 0 and shard_of("s-1", 8) in range(8)
    ```
    """
    return crc32(session_id.encode()) % shards

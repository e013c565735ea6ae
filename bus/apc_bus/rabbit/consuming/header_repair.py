"""Keeps one client's undecodable properties from closing the connection of the consumer of its message.

RabbitMQ does not check that short strings are UTF-8; pamqp refuses such a frame, aiormq then drops the
connection, the message comes again, and so on without end. Here the frame of the content header is replaced by
one that says so, with the broker-checked user_id kept, before it is parsed.
"""

import struct

from pamqp import encode
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from apc_bus.headers import UNREADABLE

HEADER_FRAME = 2
_FIXED = struct.Struct(">HHQH")
"""Class, weight, body size, property flags."""
_TABLE_FLAG, _USER_FLAG, _TIMESTAMP_FLAG = 1 << 13, 1 << 4, 1 << 6


def repaired(payload: bytes) -> bytes | None:
    """Return the payload of a content header in place of one that cannot be decoded; None when it can.

    Args:
        payload: of the frame, without its end byte.
    """
    flags = int.from_bytes(payload[12:14], "big")
    # ASCII without times always decodes, and that is nearly every message: 0.2 µs instead of 10.
    if payload[14:].isascii() and not flags & _TIMESTAMP_FLAG and b"T" not in payload:
        return None
    try:
        ContentHeader().unmarshal(payload)
    except (ValueError, OverflowError, OSError, struct.error):
        return _replacement(payload)
    return None


def _replacement(payload: bytes) -> bytes:
    class_id, weight, body_size, _ = _FIXED.unpack_from(payload)
    user = _user_id(payload)
    flags = _TABLE_FLAG | (_USER_FLAG if user is not None else 0)
    parts = [_FIXED.pack(class_id, weight, body_size, flags), encode.field_table({UNREADABLE: True})]
    if user is not None:
        parts.append(encode.short_string(user))
    return b"".join(parts)


def _user_id(payload: bytes) -> str | None:
    """Walk to the user_id over the fields before it, by their lengths alone."""
    flags = int.from_bytes(payload[12:14], "big")
    if not flags & _USER_FLAG:
        return None
    position = 14
    for name in Basic.Properties.__slots__:
        if not flags & Basic.Properties.flags[name]:
            continue
        kind = Basic.Properties.amqp_type(name)
        length = _length(kind, payload, position)
        if name == "user_id":
            return payload[position + 1 : position + length].decode(errors="replace")
        position += length
    return None


def _length(kind: str, payload: bytes, position: int) -> int:
    match kind:
        case "octet":
            return 1
        case "timestamp":
            return 8
        case "table":
            return 4 + int.from_bytes(payload[position : position + 4], "big")
        case _:
            return 1 + payload[position]

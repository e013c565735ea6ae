"""Reads a delivered message from the payloads of its frames, as pamqp reads them at a quarter of the time.

What is not plainly as this product writes it (other properties, other header types, bytes that are no UTF-8) is
left to pamqp, after `header_repair`; a test holds the two ways equal.
"""

import struct

from pamqp.commands import Basic
from pamqp.header import ContentHeader

from apc_bus.port import Delivery, HeaderValue, Message
from apc_bus.rabbit.codec import delivery_of
from apc_bus.rabbit.consuming.header_repair import repaired

_TAG = struct.Struct(">QB")
_HEADER = struct.Struct(">HHQH")
_LENGTH = struct.Struct(">I")
_ARGUMENTS_AT = 4
"""After the class and the method."""
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _PRIORITY, _CORRELATION_ID = 1 << 15, 1 << 13, 1 << 12, 1 << 11, 1 << 10
_EXPIRATION, _MESSAGE_ID, _TYPE, _USER_ID = 1 << 8, 1 << 7, 1 << 5, 1 << 4
_OTHERS = 0xFFFF ^ (
    _CONTENT_TYPE
    | _HEADERS
    | _DELIVERY_MODE
    | _PRIORITY
    | _CORRELATION_ID
    | _EXPIRATION
    | _MESSAGE_ID
    | _TYPE
    | _USER_ID
)
_STRING, _TINY, _SMALL, _INTEGER = b"SbsI"
_TRUTH = ord("t")


class _Unusual(Exception):
    """Left to pamqp."""


def read_delivery(method: bytes, header: bytes, body: bytes) -> Delivery:
    """Return the delivery in the payloads of basic.deliver, of the content header and of the body.

    Raises:
        ValueError, struct.error: no such frames.
    """
    _, position = _short(method, _ARGUMENTS_AT)
    tag, bits = _TAG.unpack_from(method, position)
    _, position = _short(method, position + _TAG.size)
    routing_key, _ = _short(method, position)
    try:
        message = _read_message(header, body)
    except (_Unusual, UnicodeDecodeError, IndexError, struct.error):
        frame = Basic.Deliver("", tag, bool(bits & 1), "", routing_key)
        return delivery_of(frame, _properties(header), body)
    return Delivery(message, tag, routing_key, bool(bits & 1))


def read_return(method: bytes, header: bytes) -> tuple[str, str, str]:
    """Return (message_id, exchange, routing key) of a returned message, from the payloads of basic.return."""
    _, position = _short(method, _ARGUMENTS_AT + 2)
    exchange, position = _short(method, position)
    routing_key, _ = _short(method, position)
    return _properties(header).message_id or "", exchange, routing_key


def _properties(header: bytes) -> Basic.Properties:
    read = ContentHeader()
    read.unmarshal(repaired(header) or header)
    return read.properties


def _read_message(header: bytes, body: bytes) -> Message:
    _, _, _, flags = _HEADER.unpack_from(header)
    if flags & _OTHERS:
        raise _Unusual
    position = _HEADER.size
    content_type = message_id = message_type = ""
    correlation_id = user_id = expiration = None
    headers: dict[str, HeaderValue] = {}
    if flags & _CONTENT_TYPE:
        content_type, position = _short(header, position)
    if flags & _HEADERS:
        headers, position = _table(header, position)
    position += bool(flags & _DELIVERY_MODE) + bool(flags & _PRIORITY)
    if flags & _CORRELATION_ID:
        correlation_id, position = _short(header, position)
    if flags & _EXPIRATION:
        expiration, position = _short(header, position)
    if flags & _MESSAGE_ID:
        message_id, position = _short(header, position)
    if flags & _TYPE:
        message_type, position = _short(header, position)
    if flags & _USER_ID:
        user_id, position = _short(header, position)
    if position != len(header):
        raise _Unusual
    expiration_ms = int(expiration) if expiration else None
    return Message(body, message_id, message_type, correlation_id, user_id, expiration_ms, content_type, headers)


def _short(data: bytes, position: int) -> tuple[str, int]:
    end = position + 1 + data[position]
    return data[position + 1 : end].decode(), end


def _table(data: bytes, position: int) -> tuple[dict[str, HeaderValue], int]:
    end = position + 4 + int.from_bytes(data[position : position + 4], "big")
    position += 4
    headers: dict[str, HeaderValue] = {}
    while position < end:
        name, position = _short(data, position)
        kind = data[position]
        position += 1
        if kind == _STRING:
            start = position + 4
            position = start + int.from_bytes(data[position:start], "big")
            headers[name] = data[start:position].decode()
            continue
        size = _SIZES.get(kind)
        if size is None:
            raise _Unusual
        value = int.from_bytes(data[position : position + size], "big", signed=True)
        headers[name] = bool(value) if kind == _TRUTH else value
        position += size
    if position != end:
        raise _Unusual
    return headers, end


_SIZES = {_TINY: 1, _SMALL: 2, _INTEGER: 4, _TRUTH: 1}

"""Reads a delivered message from the payloads of its frames: whatever bytes a broker may have confirmed.

RabbitMQ checks lengths and types of properties. It does not check that a text is UTF-8 or that a time exists, and it
takes tables of any depth. A reader that fails on such a message fails on it again in each process that consumes after
it. So nothing that a publisher chooses makes this one fail: values that the port has no type for (tables, times) are
passed over by their length and never entered, and a message whose properties cannot be read arrives with their bytes
(`UNREADABLE`).
"""

import struct
from contextlib import suppress

from apc_bus.headers import UNREADABLE
from apc_bus.port import Delivery, HeaderValue, Message

_TAG = struct.Struct(">QB")
_ARGUMENTS_AT = 4
"""After the class and the method."""
_FLAGS_AT, _PROPERTIES_AT = 12, 14
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE, _PRIORITY = 1 << 15, 1 << 14, 1 << 13, 1 << 12, 1 << 11
_CORRELATION_ID, _REPLY_TO, _EXPIRATION, _MESSAGE_ID, _TIMESTAMP = 1 << 10, 1 << 9, 1 << 8, 1 << 7, 1 << 6
_TYPE, _USER_ID, _APP_ID, _CLUSTER_ID = 1 << 5, 1 << 4, 1 << 3, 1 << 2
# The two lowest flags mean nothing to RabbitMQ: no property follows them.
_PROPERTIES = (
    *(_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS, _DELIVERY_MODE, _PRIORITY, _CORRELATION_ID, _REPLY_TO, _EXPIRATION),
    *(_MESSAGE_ID, _TIMESTAMP, _TYPE, _USER_ID, _APP_ID, _CLUSTER_ID),
)
"""In their order."""
_PROPERTY_SIZES = {_DELIVERY_MODE: 1, _PRIORITY: 1, _TIMESTAMP: 8}

_TEXT, _ARRAY, _TRUTH = b"SAt"
_INTEGERS = dict(zip(b"bsIlLt", (1, 2, 4, 8, 8, 1), strict=True))
"""Sizes. A truth value is read as a number first."""
_UNSIGNED = dict(zip(b"Bui", (1, 2, 4), strict=True))
_FLOATS = {ord("f"): struct.Struct(">f"), ord("d"): struct.Struct(">d")}
_VOID = dict.fromkeys(b"V\0", 0)
_SIZES = _INTEGERS | _UNSIGNED | _VOID | {ord("f"): 4, ord("d"): 8, ord("D"): 5, ord("T"): 8}
_WITH_LENGTH = frozenset(b"SAFx")
_BROKERS = b"x-"
"""How the names of the headers begin in which a broker itself says something."""


class _Unreadable(Exception):
    """The bytes are no properties."""


_FAILURES = (_Unreadable, IndexError, ValueError, struct.error)
"""What the reading of properties may end with; UnicodeDecodeError is a ValueError."""


def read_delivery(method: bytes, header: bytes, body: bytes) -> Delivery:
    """Return the delivery in the payloads of basic.deliver, of the content header and of the body.

    Raises:
        IndexError, struct.error: it is no basic.deliver, of which a broker alone writes the lengths.
    """
    position = _ARGUMENTS_AT + 1 + method[_ARGUMENTS_AT]
    tag, bits = _TAG.unpack_from(method, position)
    position += _TAG.size
    position += 1 + method[position]
    try:
        message = _read_message(header, body)
    except _FAILURES:
        message = _unreadable(header, body)
    # Any bytes may be the key of a message that a header CC has brought here.
    return Delivery(message, tag, _bytes(method, position).decode(errors="replace"), bool(bits & 1))


def read_return(method: bytes, header: bytes) -> tuple[str, str, str]:
    """Return (message_id, exchange, routing key) of a returned message, from the payloads of basic.return."""
    position = _ARGUMENTS_AT + 2
    position += 1 + method[position]
    exchange = _bytes(method, position)
    key = _bytes(method, position + 1 + len(exchange))
    message_id = _properties_of(header).get(_MESSAGE_ID, b"\0")[1:]
    return message_id.decode(errors="replace"), exchange.decode(errors="replace"), key.decode(errors="replace")


def _read_message(header: bytes, body: bytes) -> Message:
    """Read the properties. Raises one of _FAILURES."""
    flags = header[_FLAGS_AT] << 8 | header[_FLAGS_AT + 1]
    position = _PROPERTIES_AT
    content_type = message_id = message_type = ""
    correlation_id = user_id = expiration = None
    headers: dict[str, HeaderValue] = {}
    if flags & _CONTENT_TYPE:
        content_type, position = _short(header, position)
    if flags & _CONTENT_ENCODING:
        position += 1 + header[position]
    if flags & _HEADERS:
        headers, position = _table(header, position)
    position += bool(flags & _DELIVERY_MODE) + bool(flags & _PRIORITY)
    if flags & _CORRELATION_ID:
        correlation_id, position = _short(header, position)
    if flags & _REPLY_TO:
        position += 1 + header[position]
    if flags & _EXPIRATION:
        expiration, position = _short(header, position)
    if flags & _MESSAGE_ID:
        message_id, position = _short(header, position)
    if flags & _TIMESTAMP:
        position += _PROPERTY_SIZES[_TIMESTAMP]
    if flags & _TYPE:
        message_type, position = _short(header, position)
    if flags & _USER_ID:
        user_id, position = _short(header, position)
    if flags & _APP_ID:
        position += 1 + header[position]
    if flags & _CLUSTER_ID:
        position += 1 + header[position]
    if position != len(header):
        raise _Unreadable
    expiration_ms = int(expiration) if expiration else None
    return Message(body, message_id, message_type, correlation_id, user_id, expiration_ms, content_type, headers)


def _short(data: bytes, position: int) -> tuple[str, int]:
    end = position + 1 + data[position]
    return data[position + 1 : end].decode(), end


def _bytes(data: bytes, position: int) -> bytes:
    return data[position + 1 : position + 1 + data[position]]


def _table(data: bytes, position: int) -> tuple[dict[str, HeaderValue], int]:
    """Return the headers in a table, and where it ends. Raises one of _FAILURES."""
    end = position + 4 + int.from_bytes(data[position : position + 4], "big")
    position += 4
    headers: dict[str, HeaderValue] = {}
    while position < end:
        name, position = _short(data, position)
        kind = data[position]
        position += 1
        if kind == _TEXT:
            start = position + 4
            position = start + int.from_bytes(data[position:start], "big")
            text = data[start:position]
            try:
                headers[name] = text.decode()
            except UnicodeDecodeError:
                headers[name] = text
            continue
        size = _INTEGERS.get(kind)
        if size is None:
            start, position = position, _end_of(kind, data, position)
            _take_other(headers, name, kind, data[start:position])
            continue
        value = int.from_bytes(data[position : position + size], "big", signed=True)
        headers[name] = bool(value) if kind == _TRUTH else value
        position += size
    if position != end:
        raise _Unreadable
    return headers, end


def _end_of(kind: int, data: bytes, position: int) -> int:
    """Return where a value ends. Raises _Unreadable for a kind whose size nobody knows."""
    if kind in _WITH_LENGTH:
        return position + 4 + int.from_bytes(data[position : position + 4], "big")
    if kind in _SIZES:
        return position + _SIZES[kind]
    raise _Unreadable


def _take_other(headers: dict[str, HeaderValue], name: str, kind: int, value: bytes) -> None:
    """Take a value of a kind that this product does not send; tables, times, decimals and raw bytes are left out."""
    if kind in _UNSIGNED:
        headers[name] = int.from_bytes(value, "big")
    elif kind in _FLOATS:
        (headers[name],) = _FLOATS[kind].unpack(value)
    elif kind in _VOID:
        headers[name] = None
    elif kind == _ARRAY:
        headers[name] = _texts(value)


def _texts(array: bytes) -> list[str]:
    """Return the texts in an array. RabbitMQ passes over what else is in a CC, and routes by them: so they count.

    Raises _Unreadable for one whose values do not end where it does.
    """
    texts: list[str] = []
    position = 4
    while position < len(array):
        kind, start = array[position], position + 1
        position = _end_of(kind, array, start)
        if kind == _TEXT:
            texts.append(array[start + 4 : position].decode(errors="replace"))
    if position != len(array):
        raise _Unreadable
    return texts


def _unreadable(header: bytes, body: bytes) -> Message:
    """Return a message with what is left of its properties: who sent it, its id, and what brokers say of it."""
    properties = _properties_of(header)
    message_id = properties.get(_MESSAGE_ID, b"\0")[1:]
    headers = _said_by_brokers(properties.get(_HEADERS, b""))
    headers[UNREADABLE] = header[_FLAGS_AT:]
    return Message(
        body,
        _text_or_nothing(message_id),
        user_id=user_id_of(header),
        content_type="",
        headers=headers,
    )


def user_id_of(header: bytes) -> str | None:
    """Return the broker user in the payload of a content header, found by lengths alone; None = nobody is named."""
    user = _properties_of(header).get(_USER_ID)
    return None if user is None else user[1:].decode(errors="replace")


def _properties_of(header: bytes) -> dict[int, bytes]:
    """Return the bytes of each property by its flag, found by their lengths alone, as far as they are complete."""
    flags = int.from_bytes(header[_FLAGS_AT:_PROPERTIES_AT], "big")
    properties: dict[int, bytes] = {}
    position = _PROPERTIES_AT
    for flag in _PROPERTIES:
        if not flags & flag:
            continue
        if position >= len(header):
            break
        size = _PROPERTY_SIZES.get(flag) or 1 + header[position]
        if flag == _HEADERS:
            size = 4 + int.from_bytes(header[position : position + 4], "big")
        if position + size > len(header):
            break
        properties[flag] = header[position : position + size]
        position += size
    return properties


def _said_by_brokers(table: bytes) -> dict[str, HeaderValue]:
    """Return the headers `x-...` of a table in which others cannot be read."""
    headers: dict[str, HeaderValue] = {}
    position = 4
    while position < len(table):
        start, position = position, position + 1 + table[position]
        try:
            position = _end_of(table[position], table, position + 1)
        except _FAILURES:
            break  # nobody knows where the next one begins
        if table.startswith(_BROKERS, start + 1):
            entry = table[start:position]
            with suppress(*_FAILURES):
                headers |= _table(len(entry).to_bytes(4, "big") + entry, 0)[0]
    return headers


def _text_or_nothing(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return ""

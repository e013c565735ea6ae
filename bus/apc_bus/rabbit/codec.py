"""From AMQP 0-9-1 properties to the port's Message; `encoding` goes the other way."""

from collections.abc import Mapping
from typing import Any

from pamqp.commands import Basic

from apc_bus.port import Delivery, HeaderValue, Message

_SCALARS = (str, int, bool, float, bytes, type(None))
_OFFSET = "x-stream-offset"


def delivery_of(frame: Basic.Deliver, properties: Basic.Properties, body: bytes) -> Delivery:
    """Return a delivery as the port has it. Headers of other types than the port's (x-death) are left out."""
    headers = _headers(properties.headers) if properties.headers else {}
    offset = headers.get(_OFFSET)
    message = Message(
        body,
        properties.message_id or "",
        properties.message_type or "",
        properties.correlation_id,
        properties.user_id,
        int(properties.expiration) if properties.expiration else None,
        properties.content_type or "",
        headers,
    )
    return Delivery(
        message,
        frame.delivery_tag or 0,
        frame.routing_key or "",
        bool(frame.redelivered),
        offset if isinstance(offset, int) else None,
    )


def _headers(table: Mapping[str, Any]) -> dict[str, HeaderValue]:
    return {name: value for name, value in table.items() if _is_header_value(value)}


def _is_header_value(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, str) for item in value)
    return isinstance(value, _SCALARS)

"""Between the port's Message and AMQP 0-9-1 properties and frames."""

from collections.abc import Mapping
from typing import Any, cast

import pamqp.frame
from aio_pika.abc import AbstractIncomingMessage
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.common import FieldTable
from pamqp.header import ContentHeader

from apc_bus.port import Delivery, HeaderValue, Message, Publication

_PERSISTENT = 2
_SCALARS = (str, int, bool, float, bytes, type(None))
_OFFSET = "x-stream-offset"


def properties_of(message: Message) -> Basic.Properties:
    """The AMQP properties of a message; always persistent. The expiration is in ms, as text."""
    return Basic.Properties(
        content_type=message.content_type,
        delivery_mode=_PERSISTENT,
        message_id=message.message_id,
        message_type=message.type or None,
        correlation_id=message.correlation_id,
        user_id=message.user_id,
        expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        headers=cast("FieldTable", dict(message.headers)) if message.headers else None,
    )


def publish_frames(publication: Publication, channel: int, max_body_bytes: int) -> bytes:
    """The frames of one mandatory basic.publish, ready for the socket."""
    message = publication.message
    body = message.body
    publish = Basic.Publish(exchange=publication.exchange, routing_key=publication.routing_key, mandatory=True)
    header = ContentHeader(properties=properties_of(message), body_size=len(body))
    frames = [pamqp.frame.marshal(publish, channel), pamqp.frame.marshal(header, channel)]
    for start in range(0, len(body), max_body_bytes):
        frames.append(pamqp.frame.marshal(ContentBody(body[start : start + max_body_bytes]), channel))
    return b"".join(frames)


def incoming_delivery(incoming: AbstractIncomingMessage) -> Delivery:
    """A delivery from aio-pika's message, whose expiration is in seconds."""
    expiration = incoming.expiration
    message = Message(
        incoming.body,
        incoming.message_id or "",
        incoming.type or "",
        incoming.correlation_id,
        incoming.user_id,
        round(expiration * 1000) if isinstance(expiration, int | float) else None,
        incoming.content_type or "",
        _headers(incoming.headers),
    )
    return Delivery(message, incoming.delivery_tag or 0, incoming.routing_key or "", bool(incoming.redelivered))


def delivery_of(frame: Basic.Deliver, properties: Basic.Properties, body: bytes) -> Delivery:
    """A delivery as the port has it. Headers of other types than the port's (x-death) are left out."""
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

"""Bundles: several packets of one broker user for one shard in one AMQP message.

A message costs the broker and both ends about the same, whatever its size. Packets for apc.ingress that are published
at the same moment share one. Deliveries to agents do not: each has its own acknowledgement, retry and dead letter.

Source: docs/decisions/0017-bundles.md.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec

from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.topology import INGRESS

CONTENT_TYPE = "application/vnd.apc.bundle"
MOST_PARTS = 32
MOST_BYTES = 64 * 1024
"""Bytes of the bodies in one bundle. A larger packet travels alone."""
LARGEST_BYTES = 2 * MOST_BYTES
"""A bundle with all properties of its parts; a larger message is left as it is."""
MOST_PROPERTY_BYTES = 255
"""AMQP 0-9-1: properties are short strings."""

Property = Annotated[str, msgspec.Meta(max_length=MOST_PROPERTY_BYTES)]
PartHeader = str | Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | list[str] | None


class _Part(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One message: its bytes and the properties that are its own. The user is the bundle's."""

    body: bytes
    message_id: Property
    type: Property
    correlation_id: Property | None
    content_type: Property
    headers: dict[Property, PartHeader]


class Sending(NamedTuple):
    """One AMQP message, and the positions of the publications in it."""

    publication: Publication
    positions: list[int]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Annotated[list[_Part], msgspec.Meta(min_length=1, max_length=MOST_PARTS)])


def bundled(publications: Sequence[Publication]) -> list[Sending]:
    """Return what goes to the broker: packets for one shard together, everything else by itself.

    The order for one routing key stays.
    """
    groups: dict[tuple[str, str | None], list[int]] = {}
    sizes: dict[tuple[str, str | None], int] = {}
    found: list[list[int]] = []
    for position, publication in enumerate(publications):
        message = publication.message
        size = len(message.body)
        key = publication.routing_key, message.user_id
        if publication.exchange != INGRESS:
            found.append([position])
            continue
        if not _may_share(message):
            groups.pop(key, None)  # what follows it goes out after it
            found.append([position])
            continue
        group = groups.get(key)
        if group is None or len(group) == MOST_PARTS or sizes[key] + size > MOST_BYTES:
            group = groups[key] = []
            sizes[key] = 0
            found.append(group)
        group.append(position)
        sizes[key] += size
    return [Sending(_publication([publications[position] for position in positions]), positions) for positions in found]


def unbundled(message: Message) -> list[Message]:
    """Return the messages in a bundle, each with the bundle's user; any other message is returned as it is.

    A bundle that breaks a bound is left as it is too: the gate refuses it with its bytes. What the broker says of the
    bundle (headers `x-...`) holds for each part, whatever the part says.
    """
    if message.content_type != CONTENT_TYPE or len(message.body) > LARGEST_BYTES:
        return [message]
    try:
        parts = _decoder.decode(message.body)
    except (msgspec.MsgspecError, RecursionError, ValueError):  # ValueError: text that is not UTF-8
        return [message]
    if not all(map(_fits_amqp, parts)):
        return [message]
    said = {name: value for name, value in message.headers.items() if name.startswith("x-")}
    return [_message(part, message, said) for part in parts]


def _message(part: _Part, bundle: Message, said: dict[str, HeaderValue]) -> Message:
    return Message(
        part.body,
        part.message_id,
        part.type,
        part.correlation_id,
        bundle.user_id,
        bundle.expiration_ms,
        part.content_type,
        part.headers | said,
    )


def _publication(together: Sequence[Publication]) -> Publication:
    first = together[0]
    if len(together) == 1:
        return first
    parts = []
    for one in together:
        sent = one.message
        parts.append(
            (sent.body, sent.message_id, sent.type, sent.correlation_id, sent.content_type, dict(sent.headers))
        )
    message = Message(
        _encoder.encode(parts),
        # Not that of a part: the same packet may be in flight by itself, and answers are matched by id.
        f"{first.message.message_id}+{len(together) - 1}",
        user_id=first.message.user_id,
        content_type=CONTENT_TYPE,
    )
    return Publication(first.exchange, first.routing_key, message)


def _may_share(message: Message) -> bool:
    """Return whether a message comes out of a bundle as it went in: without a lifetime or a header of bytes."""
    return (
        len(message.body) <= MOST_BYTES
        and message.expiration_ms is None
        and message.content_type != CONTENT_TYPE
        and len(message.message_id) < MOST_PROPERTY_BYTES - len("+99")
        and all(_is_short(text) for text in (message.message_id, message.type, message.correlation_id))
        and not any(isinstance(value, bytes) for value in message.headers.values())
    )


def _fits_amqp(part: _Part) -> bool:
    properties = (part.message_id, part.type, part.correlation_id, part.content_type, *part.headers)
    return all(_is_short(text) for text in properties)


def _is_short(text: str | None) -> bool:
    return text is None or (
        len(text) <= MOST_PROPERTY_BYTES if text.isascii() else len(text.encode()) <= MOST_PROPERTY_BYTES
    )

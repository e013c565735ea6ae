"""Bundles: several messages of one broker user for the gate of one shard in one AMQP message.

A message costs the broker and both ends about the same, whatever its size. Packets for apc.ingress that are published
at the same moment share one, and so do changes of the registry for apc.receipts. Deliveries to agents do not: each has
its own acknowledgement, retry and dead letter.

Source: docs/decisions/0017-bundles.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import msgspec

from apc_bus.errors import PublishRefused
from apc_bus.port import HeaderValue, Message, Publication
from apc_bus.topology import INGRESS, RECEIPTS
from apc_contracts.identity.ids import SLOTS
from apc_contracts.limits import DEFAULT_LIMITS

CONTENT_TYPE = "application/vnd.apc.bundle"
TO_GATES = frozenset({INGRESS, RECEIPTS})
"""The exchanges whose messages the gates read, who take bundles apart."""
MOST_PARTS = 32
MOST_BYTES = 64 * 1024
"""Bytes of the parts of one bundle, properties included. A larger packet travels alone."""
LARGEST_BYTES = 2 * DEFAULT_LIMITS.size_bytes + MOST_BYTES
"""What is taken apart; a larger message is left as it is. Two packets of the largest size belong together at most."""
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


@dataclass(slots=True)
class _Group:
    """A message that is still growing: parts as they are written, and the positions of their publications."""

    positions: list[int]
    parts: list[msgspec.Raw] = field(default_factory=list)
    size: int = 0

    def has_room(self, part: bytes) -> bool:
        return len(self.parts) < MOST_PARTS and self.size + len(part) <= MOST_BYTES

    def add(self, position: int, part: bytes) -> None:
        self.positions.append(position)
        self.parts.append(msgspec.Raw(part))
        self.size += len(part)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Annotated[list[_Part], msgspec.Meta(min_length=1, max_length=MOST_PARTS)])
_part_decoder = msgspec.msgpack.Decoder(_Part)


def bundled(publications: Sequence[Publication], shards: int = SLOTS) -> list[Sending]:
    """Return what goes to the broker: what one exchange takes to one shard together, everything else by itself.

    The order for one shard stays. What belongs together has a separate message.

    Args:
        shards: N of the broker: each slot of a shard is a key to its queue. As many as there are slots = not known.

    Raises:
        PublishRefused: messages that belong together do not fit into one.
    """
    growing: dict[tuple[str, str, str | None], _Group] = {}
    groups: list[_Group] = []
    for position, publication in enumerate(publications):
        message = publication.message
        key = publication.exchange, _shard_of_key(publication.routing_key, shards), message.user_id
        is_for_gate = publication.exchange in TO_GATES
        is_followed = bool(publication.followed_by)
        part = _written(message) if is_for_gate and len(publications) > 1 and not is_followed else None
        if part is None:
            groups.append(_Group([position], _together(publication) if is_followed else []))
            if is_for_gate:
                growing.pop(key, None)  # what follows it goes out after it
            continue
        group = growing.get(key)
        if group is None or not group.has_room(part):
            group = growing[key] = _Group([])
            groups.append(group)
        group.add(position, part)
    return [Sending(_publication(publications[group.positions[0]], group.parts), group.positions) for group in groups]


def _shard_of_key(key: str, shards: int) -> str:
    return str(int(key) % shards) if key.isdecimal() else key


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


def _together(publication: Publication) -> list[msgspec.Raw]:
    """Return the parts of a message and of those that follow it."""
    messages = publication.message, *publication.followed_by
    parts = [_written(message, LARGEST_BYTES) for message in messages]
    written = [msgspec.Raw(part) for part in parts if part is not None]
    is_of_one = publication.exchange == INGRESS and len({message.user_id for message in messages}) == 1
    size = len(_encoder.encode(written))
    if len(written) < len(messages) or not is_of_one or len(written) > MOST_PARTS or size > LARGEST_BYTES:
        message_id = publication.message.message_id
        raise PublishRefused(f"{message_id} and what follows it do not fit into one message for {INGRESS}")
    return written


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


def _publication(first: Publication, parts: Sequence[msgspec.Raw]) -> Publication:
    if len(parts) < 2:
        return first
    message = Message(
        _encoder.encode(parts),
        # Not that of a part: the same packet may be in flight by itself, and answers are matched by id.
        f"{first.message.message_id}+{len(parts) - 1}",
        user_id=first.message.user_id,
        content_type=CONTENT_TYPE,
    )
    return Publication(first.exchange, first.routing_key, message)


def _written(message: Message, most_bytes: int = MOST_BYTES) -> bytes | None:
    """Return a message as a part; None for one that could not come out of a bundle as it went in.

    It is read as the gate will read it: a bundle that is made can be taken apart.
    """
    if (
        len(message.body) > most_bytes
        or message.expiration_ms is not None
        or message.content_type == CONTENT_TYPE
        or len(message.message_id) >= MOST_PROPERTY_BYTES - len("+99")
    ):
        return None
    sent = (message.body, message.message_id, message.type, message.correlation_id, message.content_type)
    try:
        part = _encoder.encode((*sent, dict(message.headers)))
        read = _part_decoder.decode(part)
    except (msgspec.MsgspecError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    return part if len(part) <= most_bytes and _fits_amqp(read) else None


def _fits_amqp(part: _Part) -> bool:
    properties = (part.message_id, part.type, part.correlation_id, part.content_type, *part.headers)
    return all(_is_short(text) for text in properties)


def _is_short(text: str | None) -> bool:
    return text is None or (
        len(text) <= MOST_PROPERTY_BYTES if text.isascii() else len(text.encode()) <= MOST_PROPERTY_BYTES
    )

"""AMQP messages as bytes, made from those that the product sends: hostile tables, properties, bodies, bundles, keys."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, cast

import msgspec
from pamqp import encode
from tests.support.hostile_bytes import HostileBytes
from tests.support.raw_amqp import BODY, CHANNEL, HEADER, METHOD, MOST, content, frame, long, short

from apc_bus import headers
from apc_bus.port import Message
from apc_bus.rabbit.bundles import CONTENT_TYPE as BUNDLE

CONTENT_TYPE, CONTENT_ENCODING, HEADERS, DELIVERY_MODE = 1 << 15, 1 << 14, 1 << 13, 1 << 12
PRIORITY, CORRELATION_ID, REPLY_TO, EXPIRATION = 1 << 11, 1 << 10, 1 << 9, 1 << 8
MESSAGE_ID, TIMESTAMP, TYPE, USER_ID, APP_ID, CLUSTER_ID = 1 << 7, 1 << 6, 1 << 5, 1 << 4, 1 << 3, 1 << 2
ORDER = tuple(1 << place for place in range(15, 1, -1))
TEXTS = (
    *(CONTENT_TYPE, CONTENT_ENCODING, CORRELATION_ID, REPLY_TO, EXPIRATION),
    *(MESSAGE_ID, TYPE, APP_ID, CLUSTER_ID),
)
"""Properties that are short strings, without the one that a broker checks."""
NAMES = (
    *(name.encode() for key, name in vars(headers).items() if key.isupper() and isinstance(name, str)),
    *(b"CC", b"BCC", b"x-death", b"x-first-death-queue", b"x-first-death-reason", b"x-delivery-count"),
    *(b"x-stream-offset", b"", b"\xff\xfe", b"\0", b"n" * 255, "é".encode(), b"\xed\xa0\x80"),
)
WORDS = (
    *(b"", b"\xff", b"\xff" * 255, b"x" * 255, b"\0", b"receipts", b"registry", b"dead_input", b"NACK", b"apc.gate.0"),
    *(b"apc.agent.sentinel.normal", b"log_batch", b"epoch_open", b"agent.red-1", b"orchestrator", BUNDLE.encode()),
    *(b"0", b"-1", b"+5", b"1_0", b" 5 ", b"9" * 255, b"1e3", "٣".encode(), b"nan", b"application/json", b"[]", b"1.2"),
)
SIZES = dict(zip(b"tbBsuIilLfdDTV", (1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8, 5, 8, 0), strict=True))
DEEPEST = 3000
LONGEST_TEXT = 3000


@dataclass(slots=True)
class Draft:
    """A message whose parts can be changed before it is written."""

    properties: dict[int, bytes]
    """By flag, as they are written; the headers are apart."""
    entries: list[bytes]
    body: bytes
    key: bytes

    @classmethod
    def of(cls, message: Message, key: str = "0") -> "Draft":
        """Return a message as the product writes it."""
        told = {
            CONTENT_TYPE: message.content_type,
            CORRELATION_ID: message.correlation_id,
            EXPIRATION: None if message.expiration_ms is None else str(message.expiration_ms),
            MESSAGE_ID: message.message_id,
            TYPE: message.type,
            USER_ID: message.user_id,
        }
        properties = {flag: short(text.encode()) for flag, text in told.items() if text}
        entries = [entry(name.encode(), value) for name, value in message.headers.items()]
        return cls(properties | {DELIVERY_MODE: b"\x02"}, entries, message.body, key.encode())

    def copy(self) -> "Draft":
        """Return one that can be changed by itself."""
        return Draft(dict(self.properties), list(self.entries), self.body, self.key)

    def written(self) -> bytes:
        """Return the flags and the property list."""
        found = dict(self.properties)
        if self.entries:
            found[HEADERS] = long(b"".join(self.entries))
        return sum(found).to_bytes(2, "big") + b"".join(found[flag] for flag in ORDER if flag in found)


@dataclass(frozen=True, slots=True)
class RawMessage:
    """A message as its bytes."""

    key: bytes
    properties: bytes
    body: bytes
    pieces: tuple[int, ...] = ()
    """Sizes of the first body frames."""
    names: tuple[bytes, bytes] = (b"ctag", b"apc.ingress")
    """The consumer tag and the exchange of its basic.deliver."""

    def delivered(self, tag: int, channel: int = CHANNEL) -> bytes:
        """Return the frames in which a broker hands it over."""
        consumer, exchange = self.names
        method = b"\0\x3c\0\x3c" + short(consumer) + tag.to_bytes(8, "big") + b"\0" + short(exchange) + short(self.key)
        return frame(METHOD, method, channel) + self._content(channel)

    def returned(self, exchange: bytes, channel: int = CHANNEL) -> bytes:
        """Return the frames in which a broker gives it back to its publisher."""
        method = b"\0\x3c\0\x32\x01\x38" + short(b"NO_ROUTE") + short(exchange) + short(self.key)
        return frame(METHOD, method, channel) + self._content(channel)

    def _content(self, channel: int) -> bytes:
        parts = [frame(HEADER, content(self.properties, self.body), channel)]
        position = 0
        for size in self.pieces:
            if position < len(self.body):
                parts.append(frame(BODY, self.body[position : position + size], channel))
                position += size
        rest = self.body[position:]
        parts += [frame(BODY, rest[at : at + MOST - 8], channel) for at in range(0, len(rest), MOST - 8)]
        return b"".join(parts)


def entry(name: bytes, value: Any) -> bytes:
    """Return an entry of a header table."""
    return short(name) + encode.encode_table_value(cast("Any", value))


def nested(kind: bytes, depth: int, value: bytes = b"V") -> bytes:
    """Return a value within so many arrays (A) or tables (F)."""
    for _ in range(depth):
        value = kind + long(value if kind == b"A" else b"\x01a" + value)
    return value


class HostileMessages:
    """Generates messages from good ones; the same seed gives the same messages.

    Args:
        good: those to start from, of every kind that the queue gets.
        chance: the source of randomness.
        is_lawful: keep to what a broker confirms to a publisher: complete lengths, known types, its own user.
    """

    def __init__(self, good: Sequence[Draft], chance: Random, *, is_lawful: bool = False) -> None:
        self._good = good
        self._chance = chance
        self._is_lawful = is_lawful
        jsons = [one.body for one in good if one.body.startswith(b"{")]
        self._bodies = HostileBytes(jsons, chance) if jsons else None
        self._deep = {
            (kind, depth): nested(kind, depth) for kind in (b"A", b"F") for depth in (1, 30, 500, 1000, DEEPEST)
        }
        ways: tuple[tuple[int, Callable[[Draft], None]], ...] = (
            *((6, self._add_entry), (3, self._replace_entry), (1, self._remove_entry), (1, self._repeat_entry)),
            *((4, self._change_text), (2, self._change_fixed), (1, self._change_key)),
            *((3, self._change_body), (2, self._damage_body)),
        )
        self._ways = [way for weight, way in ways for _ in range(weight)]

    def message(self, finish: Callable[[Draft], None] | None = None) -> RawMessage:
        """Return one more message; `finish` puts in what the broker itself says."""
        chance = self._chance
        draft = chance.choice(self._good).copy()
        for _ in range(chance.randrange(1, 4)):
            chance.choice(self._ways)(draft)
        if finish is not None:
            finish(draft)
        properties = draft.written()
        if not self._is_lawful and chance.random() < 0.25:
            properties = self._damaged(properties)
        pieces = tuple(chance.choices((0, 1, 7, 300, 5000), k=chance.randrange(4))) if chance.random() < 0.2 else ()
        names = (b"ctag", b"apc.ingress")
        if chance.random() < 0.05:
            names = (chance.randbytes(chance.randrange(256)), chance.randbytes(chance.randrange(256)))
        return RawMessage(draft.key, properties, draft.body, pieces, names)

    def _add_entry(self, draft: Draft) -> None:
        place, name = self._chance.randrange(len(draft.entries) + 1), self._chance.choice(NAMES)
        draft.entries.insert(place, short(name) + self._value_of(name))

    def _replace_entry(self, draft: Draft) -> None:
        if not draft.entries:
            return self._add_entry(draft)
        place = self._chance.randrange(len(draft.entries))
        old = draft.entries[place]
        draft.entries[place] = old[: 1 + old[0]] + self._value_of(old[1 : 1 + old[0]])

    def _remove_entry(self, draft: Draft) -> None:
        if draft.entries:
            del draft.entries[self._chance.randrange(len(draft.entries))]

    def _repeat_entry(self, draft: Draft) -> None:
        if draft.entries:
            draft.entries.append(self._chance.choice(draft.entries))

    def _value_of(self, name: bytes) -> bytes:
        """Return a value for a header of this name: RabbitMQ takes nothing but an array as a CC."""
        is_array = self._is_lawful and name in (b"CC", b"BCC")
        return self._deep[b"A", 500] if is_array else self._value()

    def _value(self) -> bytes:
        """Return a value with its type."""
        chance = self._chance
        way = chance.randrange(10)
        if way < 3:
            kind = chance.choice(b"tbBsuIilLfdDTV")
            filling = chance.choice((b"\xff", b"\0", b"\x80", None))
            size = SIZES[kind]
            return bytes([kind]) + (chance.randbytes(size) if filling is None else filling * size)
        if way == 3:
            return self._deep[chance.choice(list(self._deep))]
        if way == 4:
            return nested(chance.choice((b"A", b"F")), chance.randrange(200), b"S" + long(chance.choice(WORDS)))
        if way == 5:
            return b"A" + long(b"".join(self._small() for _ in range(chance.randrange(6))))
        if way == 6:
            return b"F" + long(
                b"".join(short(chance.choice(NAMES)) + self._small() for _ in range(chance.randrange(4)))
            )
        if way == 7:
            return chance.choice((b"S", b"x")) + long(chance.randbytes(chance.randrange(LONGEST_TEXT)))
        if way == 8 and not self._is_lawful:
            lie = struct.pack(">I", chance.choice((0, 1, 5, 0x7FFFFFFF, 0xFFFFFFFF)))
            return chance.choice((b"S", b"A", b"F", b"x", b"z", b"\0")) + lie + chance.randbytes(chance.randrange(9))
        return b"S" + long(chance.choice(WORDS))

    def _small(self) -> bytes:
        return self._chance.choice(
            (b"V", b"t\x01", b"S" + long(self._chance.choice(WORDS)), b"T" + b"\xff" * 8, b"b\x07")
        )

    def _change_text(self, draft: Draft) -> None:
        flag = self._chance.choice(TEXTS if self._is_lawful else (*TEXTS, USER_ID))
        text = self._chance.choice((self._chance.choice(WORDS), self._chance.randbytes(self._chance.randrange(256))))
        if flag == EXPIRATION and self._is_lawful:
            text = self._chance.choice((b"+99999999", b"0" * 246 + b"999999999", b"86400000"))
        draft.properties[flag] = short(text)

    def _change_fixed(self, draft: Draft) -> None:
        flag, size = self._chance.choice(((PRIORITY, 1), (TIMESTAMP, 8), (DELIVERY_MODE, 1)))
        value = self._chance.choice((b"\xff" * size, b"\0" * size, self._chance.randbytes(size)))
        if flag == DELIVERY_MODE and self._is_lawful:
            value = self._chance.choice((b"\1", b"\2"))
        draft.properties[flag] = value

    def _change_key(self, draft: Draft) -> None:
        """Use any bytes as the key; where a broker must route by it, a CC brings the message where it goes."""
        if self._is_lawful:
            draft.entries.append(short(b"CC") + b"A" + long(b"S" + long(draft.key)))
        draft.key = self._chance.choice((self._chance.randbytes(self._chance.randrange(256)), *WORDS[:4]))

    def _change_body(self, draft: Draft) -> None:
        if self._bodies is not None:
            draft.body = self._bodies.body()
        if self._chance.random() < 0.3:
            draft.properties[CONTENT_TYPE] = short(BUNDLE.encode())
            draft.body = self._bundle(draft.body)

    def _bundle(self, body: bytes) -> bytes:
        """Return a bundle of this body with odd properties, or something like one."""
        chance = self._chance
        odd: tuple[Any, ...] = (None, "x" * 300, "\0", 2**64 - 1, -1, 1.5, b"\xff", [], {"a": []}, "m", "receipts")
        part = [body, "m", "IDEA", None, "application/json", {chance.choice(["", "x-death", "CC", "a" * 256]): "1"}]
        if chance.random() < 0.7:
            part[chance.randrange(1, 6)] = chance.choice(odd)
        packed = msgspec.msgpack.encode([part] * chance.choice((1, 2, 32, 33)))
        return packed if len(packed) < 150_000 else packed[:150_000]

    def _damage_body(self, draft: Draft) -> None:
        body = bytearray(draft.body[:20_000])
        for _ in range(self._chance.randrange(1, 6)):
            if body:
                place = self._chance.randrange(len(body))
                body[place : place + self._chance.randrange(4)] = self._chance.randbytes(self._chance.randrange(4))
        if self._chance.random() < 0.1:
            deep = self._chance.choice((b"\x91", b"\x81\xa1a", b"[", b'{"a":')) * self._chance.randrange(DEEPEST)
            body[self._chance.randrange(len(body) + 1) :] = deep
        draft.body = bytes(body)

    def _damaged(self, properties: bytes) -> bytes:
        """Return a property list with bytes changed, cut off or added: what no broker would confirm."""
        chance, data = self._chance, bytearray(properties)
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data)) if data else 0
            way = chance.randrange(4)
            if way == 0 and data:
                data[place] ^= 1 << chance.randrange(8)
            elif way == 1:
                del data[place:]
            elif way == 2:
                data[place:place] = chance.randbytes(chance.randrange(1, 8))
            else:
                data[place : place + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, chance.randbytes(4)))
        return bytes(data)

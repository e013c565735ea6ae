"""Random and mutated bytes: what a broken or hostile sender may put into a packet's body."""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any

import orjson

TOKENS = (
    *(b"NaN", b"Infinity", b"-0", b"1e999", b"-1e-999", b"9007199254740993", b"1" * 400, b"0x10", b"01", b"1."),
    *(b'"\\u0000"', b'"\\ud800"', b'"\xed\xa0\x80"', b"\xc0\x80", b"\xff\xfe", b"\xef\xbb\xbf", b"\x00", b"\\"),
    *(b"null", b"true", b"{}", b"[]", b'""', b'"', b",", b":", b"{", b"}", b"[", b"]", b"/**/", b"\x0b", b"\r\n"),
    *(b'"packet_id":1,', b'"packet_type":"IDEA",', b'"__class__":{},', b'"payload":null,', b"'", b"\xe2\x80\xa8"),
)
"""Tokens that JSON readers disagree about (docs/reference/protocol.md), and the tokens JSON is made of."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 10, 2**53 - 1, 0.5, 1.5, -0.0, 1e300, "", "x", "_all", "orchestrator", "é\U0001f600"),
    *([], {}, [[]], {"a": {}}, ["x"] * 300, "x" * 5000, "2026-02-19T07:50:00Z", "0000", "a.b*#%", "../x", "%00"),
    *("apc/1.0", "apc/9.9", "IDEA", "INTRA_AGENT", "SUBSTRATE", "7f0c2f5d-0f76-4a4c-93d0-f0b2e2891730", " ", "\n"),
)
"""Values to put in the place of another."""
LONGEST_NOISE = 400
DEEPEST = 3000


class HostileBytes:
    """Generates hostile bodies from good ones; the same seed gives the same bodies.

    Args:
        good: bodies to start from, such as a packet of each type.
        chance: the source of randomness.
    """

    def __init__(self, good: Sequence[bytes], chance: Random) -> None:
        self._good = good
        self._chance = chance
        self._ways: tuple[Callable[[], bytes], ...] = (
            self._noise,
            self._tokens,
            *(self._damaged,) * 4,
            *(self._changed,) * 2,
            *(self._plausible,) * 3,
            self._nested,
        )

    def body(self) -> bytes:
        """Return one more body: noise, tokens, damaged text, a changed, plausible or very deep document."""
        return self._chance.choice(self._ways)()

    def _noise(self) -> bytes:
        return self._chance.randbytes(self._chance.randrange(LONGEST_NOISE))

    def _tokens(self) -> bytes:
        return b"".join(self._chance.choices(TOKENS, k=self._chance.randrange(1, 30)))

    def _nested(self) -> bytes:
        depth = self._chance.randrange(1, DEEPEST)
        opening, closing = self._chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
        middle = self._chance.choice((b"1", b"", self._chance.choice(self._good)))
        return opening * depth + middle + closing * self._chance.choice((depth, depth - 1, 0))

    def _damaged(self) -> bytes:
        """Return a good text with up to four changes in its bytes."""
        body = bytearray(self._chance.choice(self._good))
        for _ in range(self._chance.randrange(1, 5)):
            start = self._chance.randrange(len(body) + 1)
            end = min(len(body), start + self._chance.randrange(1, 40))
            injury = self._chance.randrange(5)
            if injury == 0 and start < len(body):
                body[start] ^= 1 << self._chance.randrange(8)
            elif injury == 1:
                del body[start:end]
            elif injury == 2:
                body[start:start] = body[start:end]
            elif injury == 3:
                body[start:start] = self._chance.choice(TOKENS)
            else:
                body[start:end] = self._chance.randbytes(self._chance.randrange(8))
        return bytes(body)

    def _changed(self) -> bytes:
        """Return a good document with up to three values replaced, removed, or added; still JSON."""
        document = self._document()
        for _ in range(self._chance.randrange(1, 4)):
            container = self._chance.choice(_containers(document))
            if container:
                self._change(container)
        return _written(document, is_ascii=self._chance.random() < 0.5)

    def _change(self, container: Any) -> None:
        place = self._chance.choice(list(container) if isinstance(container, dict) else range(len(container)))
        value = deepcopy(self._chance.choice(VALUES))  # it may be changed in its turn
        way = self._chance.randrange(4)
        if way < 2:
            container[place] = value
        elif way == 2:
            del container[place]
        elif isinstance(container, dict):
            container[f"{place}_"] = value
        else:
            container.insert(place, value)

    def _plausible(self) -> bytes:
        """Return a good document in which a text or a number is replaced by another one."""
        document = self._document()
        leaves = [(container, place, value) for container, place, value in _leaves(document) if value is not None]
        container, place, value = self._chance.choice(leaves)
        others = [other for _, _, other in leaves if type(other) is type(value)]
        container[place] = self._chance.choice([*others, *(one for one in VALUES if type(one) is type(value))])
        return _written(document, is_ascii=False)

    def _document(self) -> Any:
        return orjson.loads(self._chance.choice(self._good))


def _containers(document: Any) -> list[Any]:
    found = [document]
    for container in found:
        inner = container.values() if isinstance(container, dict) else container
        found.extend(one for one in inner if isinstance(one, dict | list))
    return found


def _leaves(document: Any) -> Iterator[tuple[Any, Any, Any]]:
    for container in _containers(document):
        places = container.items() if isinstance(container, dict) else enumerate(container)
        yield from ((container, place, value) for place, value in places if not isinstance(value, dict | list))


def _written(document: Any, *, is_ascii: bool) -> bytes:
    return json.dumps(document, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")

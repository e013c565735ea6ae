"""Bodies that are no packets, amid a load: each is kept with its bytes, and nobody else notices (rows 22 to 25)."""

import json
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from tests.faults.hostile.attacks import DOZENS, Attack

from apc_contracts import seal

pytestmark = pytest.mark.faults
Damage = Callable[[bytes], bytes]
PACKET_BYTES = 256 * 1024
"""The limit of the packaged contract."""


def instead_of_confidence(text: bytes) -> Damage:
    """Return a number of the packet replaced by something else."""
    return lambda body: body.replace(b'"confidence":0.5', b'"confidence":' + text)


def as_intent(text: bytes) -> Damage:
    """Return a text of the payload replaced by something else."""
    return lambda body: body.replace(b'"intent":"work"', b'"intent":' + text)


def changed(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Return the packet as a document that no model would make."""

    def damage(body: bytes) -> bytes:
        document = json.loads(body)
        change(document)
        return json.dumps(document).encode()

    return damage


MALFORMED: list[Damage] = [
    lambda body: body[:-1],
    lambda body: body + b"}",
    lambda body: body + body,
    lambda body: b"\xef\xbb\xbf" + body,
    lambda body: body.decode().encode("utf-16"),
    lambda body: body.replace(b'"', b"'"),
    as_intent(b'"\xff\xfe"'),
    as_intent(b'"\xed\xa0\x80"'),
]
DISPUTED: list[Damage] = [
    instead_of_confidence(b"NaN"),
    instead_of_confidence(b"Infinity"),
    instead_of_confidence(b"1e999"),
    instead_of_confidence(b"9007199254740993"),
    instead_of_confidence(b"1" * 400),
    instead_of_confidence(b'0.5,"confidence":0.5'),
    as_intent(b'"\\ud800"'),
    as_intent(b'"\\u0000"'),
]
AGAINST_THE_SCHEMA: list[Damage] = [
    changed(lambda document: document.update(mood="good")),
    changed(lambda document: document["payload"].update(mood="good")),
    changed(lambda document: document["payload"].pop("intent")),
    changed(lambda document: document.update(confidence="high")),
    changed(lambda document: document.update(recipients=[])),
    changed(lambda document: document.update(packet_type="GOSSIP")),
    changed(lambda document: document.update(packet_type="CLAIM")),
    changed(lambda document: document.update(protocol_version="apc/9.9")),
]


def oversize(body: bytes) -> bytes:
    """Return the packet with blanks behind it, which JSON allows."""
    return body.ljust(PACKET_BYTES + 1)


async def put_in(attack: Attack, *damages: Damage) -> None:
    """Each damage in turn, done to packets that are new."""
    for number in range(DOZENS):
        packet = attack.idea()
        body = seal(packet).body
        damaged = damages[number % len(damages)](body)
        assert damaged != body, f"not exercised: damage {number % len(damages)}"
        await attack.put(packet, body=damaged)


async def test_bodies_that_are_too_large(attack: Attack) -> None:
    """Row 22."""
    async with attack.amid_load():
        await put_in(attack, oversize)
    await attack.end("a body that is too large", TOO_LARGE=DOZENS)
    assert await attack.kept() == Counter(sha256(body).digest() for body in attack.bodies)


async def test_malformed_bodies(attack: Attack) -> None:
    """Row 23."""
    async with attack.amid_load():
        await put_in(attack, *MALFORMED)
    await attack.end("malformed JSON, bad UTF-8, BOM", MALFORMED=DOZENS)
    assert await attack.kept() == Counter(sha256(body).digest() for body in attack.bodies)


async def test_what_readers_of_json_disagree_about(attack: Attack) -> None:
    """Row 24."""
    async with attack.amid_load():
        await put_in(attack, *DISPUTED)
        await put_in(attack, as_intent(b"[" * 3000 + b"]" * 3000))
    await attack.end("NaN, huge numbers, doubled keys, depth", MALFORMED=DOZENS, TOO_DEEP=DOZENS)
    assert await attack.kept() == Counter(sha256(body).digest() for body in attack.bodies)


async def test_packets_against_their_schema(attack: Attack) -> None:
    """Row 25."""
    async with attack.amid_load():
        await put_in(attack, *AGAINST_THE_SCHEMA)
    await attack.end("against the schema, unknown type or version", SCHEMA_INVALID=DOZENS)
    assert await attack.kept() == Counter(sha256(body).digest() for body in attack.bodies)

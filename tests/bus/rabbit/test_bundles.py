"""Bundles: each message comes out as it went in, and what breaks a bound is left as it is."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apc_bus.errors import PublishRefused
from apc_bus.port import Message, Publication
from apc_bus.rabbit.bundles import CONTENT_TYPE, LARGEST_BYTES, MOST_BYTES, MOST_PARTS, bundled, unbundled
from apc_bus.topology import INGRESS, INTER_AGENT, RECEIPTS
from apc_contracts.limits import DEFAULT_LIMITS

texts = st.text(max_size=300)
values = st.one_of(texts, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.none(), st.binary(max_size=5))
messages = st.builds(
    Message,
    body=st.one_of(st.binary(max_size=40), st.sampled_from([b"x" * (MOST_BYTES // 2), b"x" * (MOST_BYTES + 1)])),
    message_id=texts,
    type=texts,
    correlation_id=st.none() | texts,
    user_id=st.sampled_from(["red", "blue"]),
    expiration_ms=st.sampled_from([None, None, None, 5]),
    content_type=st.sampled_from(["application/json", "", CONTENT_TYPE]),
    headers=st.dictionaries(texts, values, max_size=3),
)
publications = st.builds(Publication, st.sampled_from([INGRESS, RECEIPTS]), st.sampled_from(["0", "1"]), messages)


def test_slots_of_one_shard_share_a_bundle() -> None:
    """Else sessions would not: each has its own slot."""
    packets = [Publication(INGRESS, str(slot), Message(b"{}", f"m-{slot}")) for slot in (0, 7, 2, 255, 128)]
    assert [one.positions for one in bundled(packets, shards=1)] == [[0, 1, 2, 3, 4]]
    assert [one.positions for one in bundled(packets, shards=2)] == [[0, 2, 4], [1, 3]]
    assert [one.publication.routing_key for one in bundled(packets, shards=2)] == ["0", "7"]
    assert len(bundled(packets)) == 5, "who does not know the number of shards knows no other slot of it"


@given(st.lists(publications, max_size=60))
def test_everything_arrives_once_in_the_order_of_its_queue(sent: Sequence[Publication]) -> None:
    sendings = bundled(sent)
    assert sorted(position for one in sendings for position in one.positions) == list(range(len(sent)))
    arrived: list[tuple[str, str, Message]] = []
    for publication, positions in sendings:
        parts = unbundled(publication.message) if len(positions) > 1 else [publication.message]
        assert len(parts) == len(positions) <= MOST_PARTS
        assert len(publication.message.body) <= LARGEST_BYTES or len(positions) == 1
        arrived += [(publication.exchange, publication.routing_key, part) for part in parts]
        for position, part in zip(positions, parts, strict=True):
            assert part == sent[position].message and publication.routing_key == sent[position].routing_key
    for exchange in (INGRESS, RECEIPTS):
        for key in ("0", "1"):
            for user in ("red", "blue"):
                place = (exchange, key)
                came = [one[2] for one in arrived if one[:2] == place and one[2].user_id == user]
                went = [one.message for one in sent if (one.exchange, one.routing_key) == place]
                assert came == [message for message in went if message.user_id == user]


def test_what_one_gate_reads_of_one_exchange_shares_a_message_and_nothing_else_does() -> None:
    packets = [Publication(INGRESS, str(number % 2), Message(b"{}", f"m-{number}")) for number in range(40)]
    receipts = [Publication(RECEIPTS, "0", Message(b"[]", f"r-{number}")) for number in range(3)]
    deliveries = [Publication(INTER_AGENT, "a", Message(b"{}", f"d-{number}")) for number in range(2)]
    assert [len(one.positions) for one in bundled([*packets, *receipts, *deliveries])] == [20, 20, 3, 1, 1]
    ids = [one.publication.message.message_id for one in bundled(packets)]
    assert ids == ["m-0+19", "m-1+19"], "its own id: a part may be in flight by itself"


def test_a_bundle_ends_at_its_bounds() -> None:
    small = [Publication(INGRESS, "0", Message(b"{}", f"m-{number}")) for number in range(MOST_PARTS + 1)]
    assert [len(one.positions) for one in bundled(small)] == [MOST_PARTS, 1]
    large = [Publication(INGRESS, "0", Message(b"x" * (MOST_BYTES // 2), f"m-{number}")) for number in range(3)]
    assert [len(one.positions) for one in bundled(large)] == [1, 1, 1], "properties count too"
    half = [Publication(INGRESS, "0", Message(b"x" * (MOST_BYTES // 2 - 100), f"m-{number}")) for number in range(3)]
    assert [len(one.positions) for one in bundled(half)] == [2, 1]


def test_what_belongs_together_is_one_separate_message() -> None:
    """A START and its input, each of the largest size that a packet may have."""
    start, work = (Message(b"x" * DEFAULT_LIMITS.size_bytes, name, user_id="red") for name in ("start", "work"))
    others = [Publication(INGRESS, "0", Message(b"{}", f"m-{number}", user_id="red")) for number in range(4)]
    sent = [*others[:2], Publication(INGRESS, "0", start, (work,)), *others[2:]]
    sendings = bundled(sent)
    assert [one.positions for one in sendings] == [[0, 1], [2], [3, 4]]
    assert unbundled(sendings[1].publication.message) == [start, work]
    assert sendings[1].publication.followed_by == ()


FOLLOWING: dict[str, Publication] = {
    "another exchange": Publication(RECEIPTS, "0", Message(b"[]", "a"), (Message(b"[]", "b"),)),
    "another user": Publication(INGRESS, "0", Message(b"", "a", user_id="red"), (Message(b"", "b", user_id="blue"),)),
    "too large": Publication(INGRESS, "0", Message(b"", "a"), (Message(b"x" * LARGEST_BYTES, "b"),)),
    "too many": Publication(INGRESS, "0", Message(b"", "a"), tuple(Message(b"", str(n)) for n in range(MOST_PARTS))),
    "with an expiry": Publication(INGRESS, "0", Message(b"", "a"), (Message(b"", "b", expiration_ms=5),)),
}


@pytest.mark.parametrize("publication", FOLLOWING.values(), ids=FOLLOWING)
def test_what_cannot_go_together_is_refused_and_not_torn_apart(publication: Publication) -> None:
    with pytest.raises(PublishRefused, match="a and what follows it do not fit into one message"):
        bundled([publication])


HEADERS: dict[str, dict[str, Any]] = {
    "large": {"apc-receipts": "r" * 4000},
    "a number beyond 64 bits": {"n": 2**63},
    "a long name": {"n" * 256: 1},
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_what_is_bundled_can_be_taken_apart_whatever_the_headers(headers: dict[str, Any]) -> None:
    """Else honest packets would be kept as one unreadable input."""
    sent = [Message(b"x" * 1900, f"m-{number}", headers=headers if number > 8 else {}) for number in range(MOST_PARTS)]
    sent.append(Message(b"{}", "m-odd", content_type="x" * 300))
    sendings = bundled([Publication(INGRESS, "0", one) for one in sent])
    found = [part for one in sendings if len(one.positions) > 1 for part in unbundled(one.publication.message)]
    assert len(found) == sum(len(one.positions) for one in sendings if len(one.positions) > 1) > 1


def part(**changes: Any) -> list[Any]:
    fields: dict[str, Any] = {
        "body": b"{}",
        "id": "m",
        "type": "",
        "correlation": None,
        "content_type": "",
        "headers": {},
    }
    return list((fields | changes).values())


BROKEN: dict[str, Any] = {
    "no array": {},
    "no part": [],
    "too many parts": [part()] * (MOST_PARTS + 1),
    "a part with a field less": [part()[:-1]],
    "a part with a field more": [[*part(), 1]],
    "a body of text": [part(body="{}")],
    "an id longer than AMQP has": [part(id="x" * 256)],
    "an id of more bytes than AMQP has": [part(id="ü" * 200)],
    "a header name longer than AMQP has": [part(headers={"x" * 256: 1})],
    "a table in a header": [part(headers={"a": {"b": 1}})],
    "bytes in a header": [part(headers={"a": b"x"})],
    "a number beyond 64 bits": [part(headers={"a": 2**63})],
    "an extension": [part(headers={"a": msgspec.msgpack.Ext(1, b"x")})],
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_broken_bundle_is_left_as_it_is(content: object) -> None:
    message = Message(msgspec.msgpack.encode(content), "m", user_id="red", content_type=CONTENT_TYPE)
    assert unbundled(message) == [message]


@given(st.binary(max_size=200))
def test_any_bytes_are_left_or_unbundled(body: bytes) -> None:
    message = Message(body, "m", user_id="red", content_type=CONTENT_TYPE)
    assert unbundled(message) == [message] or all(one.user_id == "red" for one in unbundled(message))


@pytest.mark.parametrize(
    "body", [b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\x91\xa1\xff", b"x" * (LARGEST_BYTES + 1)]
)
def test_hostile_bytes_are_left_as_they_are(body: bytes) -> None:
    message = Message(body, "m", user_id="red", content_type=CONTENT_TYPE)
    assert unbundled(message) == [message]


def test_what_the_broker_says_of_the_bundle_holds_for_its_parts() -> None:
    content = [part(id="m-1", headers={"x-first-death-reason": "forged", "apc-cause": "c"}), part(id="m-2")]
    said = {"x-first-death-reason": "expired", "x-first-death-queue": "apc.gate.0", "apc-signature": "of the bundle"}
    body = msgspec.msgpack.encode(content)
    first, second = unbundled(Message(body, "b", user_id="red", content_type=CONTENT_TYPE, headers=said))
    told = {"x-first-death-reason": "expired", "x-first-death-queue": "apc.gate.0"}
    assert first.headers == {"apc-cause": "c"} | told and second.headers == told
    assert (first.user_id, first.message_id, second.message_id) == ("red", "m-1", "m-2")


def test_a_bundle_within_a_bundle_is_a_plain_message() -> None:
    inner = msgspec.msgpack.encode([part()])
    outer = msgspec.msgpack.encode([part(body=inner, content_type=CONTENT_TYPE)])
    (found,) = unbundled(Message(outer, "b", user_id="red", content_type=CONTENT_TYPE))
    assert found.body == inner

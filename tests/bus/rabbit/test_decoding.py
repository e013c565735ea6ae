"""What the broker sends is read as pamqp reads it, in whatever pieces it comes."""

from typing import Any

import pamqp.frame
import pytest
from aiormq.exceptions import InvalidFrameError
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic, Channel
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat
from tests.support.raw_amqp import content, long, short

from apc_bus.headers import UNREADABLE
from apc_bus.port import Delivery, Message
from apc_bus.rabbit.decoding import read_delivery, read_return
from apc_bus.rabbit.transport import FrameSplitter, ListeningTransport, _Reader

CHANNEL, ELSEWHERE = 1, 2
PORTED = (str, int, bool, float, bytes, type(None), list)
short_text = st.text(max_size=60)
values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text()
    | st.floats(width=32)
    | st.lists(st.text(), max_size=3)
)
properties = st.builds(
    Basic.Properties,
    content_type=st.none() | short_text,
    content_encoding=st.none() | short_text,
    headers=st.none() | st.dictionaries(st.text(max_size=30), values, max_size=6),
    delivery_mode=st.none() | st.sampled_from((1, 2)),
    priority=st.none() | st.integers(0, 9),
    correlation_id=st.none() | short_text,
    expiration=st.none() | st.integers(0, 2**31).map(str),
    message_id=st.none() | short_text,
    message_type=st.none() | short_text,
    user_id=st.none() | short_text,
    app_id=st.none() | short_text,
)
methods = st.builds(
    Basic.Deliver,
    consumer_tag=short_text,
    delivery_tag=st.integers(1, 2**63 - 1),
    redelivered=st.booleans(),
    exchange=st.just("apc.inter_agent"),
    routing_key=short_text,
)


def by_pamqp(method: bytes, header: bytes, body: bytes) -> Delivery:
    """Read a delivery as the library would: tables, times, decimals and raw bytes are left out."""
    frame, read = Basic.Deliver(), ContentHeader()
    frame.unmarshal(method[4:])
    read.unmarshal(header)
    found = read.properties
    headers = {name: value for name, value in (found.headers or {}).items() if isinstance(value, PORTED)}
    message = Message(
        body,
        found.message_id or "",
        found.message_type or "",
        found.correlation_id,
        found.user_id,
        int(found.expiration) if found.expiration else None,
        found.content_type or "",
        {name: _texts(value) if isinstance(value, list) else value for name, value in headers.items()},
    )
    return Delivery(message, frame.delivery_tag or 0, frame.routing_key or "", bool(frame.redelivered))


def _texts(values: list[Any]) -> list[str]:
    return [
        one if isinstance(one, str) else one.decode(errors="replace") for one in values if isinstance(one, str | bytes)
    ]


def payload(frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, CHANNEL)[7:-1]


def with_properties(flags: int, *parts: bytes) -> bytes:
    """Return a content header of these flags and property bytes, for a body of two bytes."""
    return content(flags.to_bytes(2, "big") + b"".join(parts), b"{}")


DELIVER = payload(Basic.Deliver("tag", 1, False, "e", "0"))
HEADERS, MESSAGE_ID, TIMESTAMP, USER_ID = 1 << 13, 1 << 7, 1 << 6, 1 << 4
GUEST = short(b"guest")


@given(methods, properties, st.binary(max_size=20))
def test_a_delivery_is_read_as_pamqp_reads_it(method: Basic.Deliver, sent: Basic.Properties, body: bytes) -> None:
    header = payload(ContentHeader(properties=sent, body_size=len(body)))
    read = read_delivery(payload(method), header, body)
    assert repr(read) == repr(by_pamqp(payload(method), header, body))
    types = {name: type(value) for name, value in read.message.headers.items()}
    assert types == {name: type(value) for name, value in (sent.headers or {}).items() if name in types}


@pytest.mark.long
@given(methods, properties, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_header_is_read_as_pamqp_reads_it_or_marked(
    method: Basic.Deliver, sent: Basic.Properties, place: int, value: int
) -> None:
    header = bytearray(payload(ContentHeader(properties=sent, body_size=1)))
    header[12 + place % (len(header) - 12)] = value
    read = read_delivery(payload(method), bytes(header), b"x")
    if UNREADABLE in read.message.headers:
        assert read.message.headers[UNREADABLE] == bytes(header[12:])
        return
    try:
        expected = by_pamqp(payload(method), bytes(header), b"x")
    except Exception:
        # A time that does not exist, or text that is none where the port has no property.
        return
    # By repr: a damaged float may be NaN, which equals nothing.
    assert header[13] & 3 or repr(read) == repr(expected)


def nested(kind: bytes, depth: int) -> bytes:
    """Return a value within so many arrays (A) or tables (F)."""
    value = b"V"
    for _ in range(depth):
        value = kind + long(value if kind == b"A" else b"\x01a" + value)
    return value


@pytest.mark.parametrize("kind", [b"A", b"F"])
@pytest.mark.parametrize("depth", [1, 100, 1000, 3000, 9000])
def test_a_table_of_any_depth_is_passed_over(kind: bytes, depth: int) -> None:
    table = long(b"\x01a" + nested(kind, depth) + b"\x01bI\0\0\0\x07")
    message = read_delivery(DELIVER, with_properties(HEADERS | USER_ID, table, GUEST), b"{}").message
    assert (message.headers["b"], message.user_id) == (7, "guest")


@pytest.mark.parametrize(
    ("header", "message_id"),
    [
        (with_properties(MESSAGE_ID | USER_ID, short(b"\xff" * 255), GUEST), ""),
        (with_properties(HEADERS | MESSAGE_ID | USER_ID, long(b"\x01\xffV"), short(b"m"), GUEST), "m"),
        (with_properties(HEADERS | MESSAGE_ID | USER_ID, long(b"\x01az"), short(b"m"), GUEST), "m"),
        (with_properties(HEADERS | MESSAGE_ID | USER_ID, long(b"\x01aA" + b"\0\0\0\x09V"), short(b"m"), GUEST), "m"),
        (with_properties(HEADERS | USER_ID, long(b"\x01aA" + b"\0\0\0\x01S\0\0\0\0"), GUEST), ""),
        (with_properties(MESSAGE_ID | USER_ID, short(b"m"), GUEST, b"trailing"), "m"),
    ],
)
def test_what_cannot_be_read_keeps_its_bytes_its_sender_and_its_id(header: bytes, message_id: str) -> None:
    read = read_delivery(DELIVER, header, b"{}").message
    assert read == Message(b"{}", message_id, content_type="", user_id="guest", headers={UNREADABLE: header[12:]})


def test_a_table_that_overruns_leaves_no_sender() -> None:
    header = with_properties(HEADERS | USER_ID, b"\0\0\xff\xff\x01aV", GUEST)
    read = read_delivery(DELIVER, header, b"{}").message
    assert (read.user_id, read.headers) == (None, {UNREADABLE: header[12:]})


def test_what_brokers_say_is_read_beside_what_cannot_be_read() -> None:
    table = long(b"\x01\xffV" + short(b"x-first-death-queue") + b"S" + long(b"apc.gate.0") + short(b"x-\xfe") + b"V")
    read = read_delivery(DELIVER, with_properties(HEADERS, table), b"{}").message
    assert read.headers["x-first-death-queue"] == "apc.gate.0" and UNREADABLE in read.headers


@pytest.mark.parametrize("flags", [1, 2, 3])
def test_the_flags_without_meaning_are_ignored_as_by_rabbitmq(flags: int) -> None:
    """Else the broker checks another user_id than the one that is read here."""
    read = read_delivery(DELIVER, with_properties(HEADERS | USER_ID | flags, long(b""), GUEST), b"{}").message
    assert (read.user_id, read.headers) == ("guest", {})


def test_times_that_do_not_exist_are_passed_over() -> None:
    header = with_properties(HEADERS | TIMESTAMP | USER_ID, long(b"\x01aT" + b"\xff" * 8), b"\xff" * 8, GUEST)
    assert read_delivery(DELIVER, header, b"{}").message == Message(b"{}", "", content_type="", user_id="guest")


def test_a_copy_header_counts_whatever_else_is_in_it() -> None:
    """RabbitMQ routes by the texts in a CC and passes over the rest."""
    table = long(b"\x02CCA" + long(b"S" + long(b"1") + b"V" + nested(b"F", 2000) + b"S" + long(b"\xff")))
    read = read_delivery(DELIVER, with_properties(HEADERS, table), b"{}").message
    assert read.headers == {"CC": ["1", "\ufffd"]}


def test_the_names_in_a_deliver_frame_may_be_any_bytes() -> None:
    """A message that CC has brought to a queue keeps the key of its publish."""
    method = b"\0\x3c\0\x3c" + short(b"\xff") + bytes(7) + b"\x09\1" + short(b"\xfe") + short(b"\xff\xfe")
    read = read_delivery(method, with_properties(USER_ID, GUEST), b"{}")
    assert (read.tag, read.is_redelivered, read.routing_key) == (9, True, "\ufffd\ufffd")


@pytest.mark.parametrize("table", [b"\x01a" + nested(b"F", 3000), b"\x01\xffV"])
def test_a_return_is_matched_whatever_its_headers_are(table: bytes) -> None:
    method = payload(Basic.Return(312, "NO_ROUTE", "apc.ingress", "k"))
    header = with_properties(HEADERS | MESSAGE_ID, long(table), short(b"m"))
    assert read_return(method, header) == ("m", "apc.ingress", "k")


class Recorder:
    """Writes down what a channel takes."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def take_delivery(self, method: bytes, header: bytes, body: bytes) -> None:
        self.taken.append(("delivery", body))

    def take_return(self, method: bytes, header: bytes) -> None:
        self.taken.append("return")

    def take_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
        self.taken.append((tag, is_multiple, is_stored))


def stream() -> tuple[bytes, list[Any], bytes]:
    """Frames of two channels, what channel 1 takes of them, and what is left for aiormq."""
    body = bytes(range(256)) * 3
    deliver = Basic.Deliver("tag", 1, False, "e", "k")
    header = ContentHeader(properties=Basic.Properties(message_id="m"), body_size=len(body))
    frames: list[tuple[Any, int]] = [
        (Heartbeat(), 0),
        (deliver, CHANNEL),
        (header, CHANNEL),
        (deliver, ELSEWHERE),
        (ContentBody(body[:500]), CHANNEL),
        (header, ELSEWHERE),
        (ContentBody(body[500:]), CHANNEL),
        (ContentBody(body), ELSEWHERE),
        (Basic.Return(312, "NO_ROUTE", "e", "k"), CHANNEL),
        (ContentHeader(properties=Basic.Properties(message_id="m"), body_size=0), CHANNEL),
        (Basic.Ack(7, True), CHANNEL),
        (Basic.Nack(8, False, True), CHANNEL),
        (Basic.Ack(9, False), ELSEWHERE),
        (Channel.CloseOk(), CHANNEL),
    ]
    marshalled = [(pamqp.frame.marshal(frame, number), number, frame) for frame, number in frames]
    left = [data for data, number, frame in marshalled if number != CHANNEL or isinstance(frame, Channel.CloseOk)]
    taken = [("delivery", body), "return", (7, True, True), (8, False, False)]
    return b"".join(data for data, _, _ in marshalled), taken, b"".join(left)


@given(st.lists(st.integers(1, 400), min_size=1))
def test_pieces_of_any_size_are_split_alike(sizes: list[int]) -> None:
    data, taken, left = stream()
    splitter, recorder = FrameSplitter(), Recorder()
    splitter.add(CHANNEL, recorder)
    others, position = b"", 0
    while position < len(data):
        size = sizes[position % len(sizes)]
        others += splitter.split(data[position : position + size])
        position += size
    assert recorder.taken == taken
    assert others == left
    assert splitter.take_rest() == b""


def test_what_is_no_frame_is_left_to_aiormq() -> None:
    splitter = FrameSplitter()
    splitter.add(CHANNEL, Recorder())
    data = pamqp.frame.marshal(Basic.Ack(1, False), CHANNEL)[:-1] + b"\0"
    assert splitter.split(data) == data
    assert splitter.split(b"AMQP\0\0\x09\x01") == b""
    assert splitter.take_rest() == b"AMQP\0\0\x09\x01"


async def test_a_broker_that_only_delivers_counts_as_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = ListeningTransport()
    transport.splitter.add(CHANNEL, Recorder())
    monkeypatch.setattr("apc_bus.rabbit.transport._SIGN_OF_LIFE_SECONDS", 0)
    reader = _Reader(transport.silences, transport.splitter)
    reader.feed_data(pamqp.frame.marshal(Basic.Ack(1, False), CHANNEL))
    assert isinstance(pamqp.frame.unmarshal(await reader.readexactly(8))[2], Heartbeat)


async def test_a_delivery_that_cannot_be_read_ends_the_connection() -> None:
    class Failing(Recorder):
        def take_confirm(self, tag: int, *, is_multiple: bool, is_stored: bool) -> None:
            raise ValueError("unreadable")

    transport = ListeningTransport()
    transport.splitter.add(CHANNEL, Failing())
    reader = _Reader(transport.silences, transport.splitter)
    reader.feed_data(pamqp.frame.marshal(Basic.Ack(1, False), CHANNEL))
    with pytest.raises(InvalidFrameError, match="unreadable"):
        await reader.readexactly(1)

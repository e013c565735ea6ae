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

from apc_bus.port import Delivery
from apc_bus.rabbit.codec import delivery_of
from apc_bus.rabbit.consuming.decoding import read_delivery
from apc_bus.rabbit.consuming.header_repair import repaired
from apc_bus.rabbit.consuming.splitting import FrameSplitter
from apc_bus.rabbit.transport import ListeningTransport, _Reader

CHANNEL, ELSEWHERE = 1, 2
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
    frame, read = Basic.Deliver(), ContentHeader()
    frame.unmarshal(method[4:])
    read.unmarshal(repaired(header) or header)
    return delivery_of(frame, read.properties, body)


def payload(frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, CHANNEL)[7:-1]


@given(methods, properties, st.binary(max_size=20))
def test_a_delivery_is_read_as_pamqp_reads_it(method: Basic.Deliver, sent: Basic.Properties, body: bytes) -> None:
    header = payload(ContentHeader(properties=sent, body_size=len(body)))
    read = read_delivery(payload(method), header, body)
    assert repr(read) == repr(by_pamqp(payload(method), header, body))
    types = {name: type(value) for name, value in read.message.headers.items()}
    assert types == {name: type(value) for name, value in (sent.headers or {}).items() if name in types}


@given(methods, properties, st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_header_ends_as_with_pamqp(
    method: Basic.Deliver, sent: Basic.Properties, place: int, value: int
) -> None:
    header = bytearray(payload(ContentHeader(properties=sent, body_size=1)))
    header[12 + place % (len(header) - 12)] = value
    try:
        expected = by_pamqp(payload(method), bytes(header), b"x")
    except Exception:
        # What pamqp cannot read at all may be read here or refused, but never as something else than an error.
        return
    # By repr: a damaged float may be NaN, which equals nothing.
    assert repr(read_delivery(payload(method), bytes(header), b"x")) == repr(expected)


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

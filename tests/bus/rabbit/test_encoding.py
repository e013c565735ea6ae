"""Our frames of a publish are the ones that pamqp writes."""

from typing import Any, cast

import pamqp.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp.body import ContentBody
from pamqp.commands import Basic
from pamqp.header import ContentHeader

from apc_bus.port import Message, Publication
from apc_bus.rabbit.encoding import publish_frames

BODY_BYTES = 100
short_text = st.text(max_size=60)
header_values = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.lists(st.text(), max_size=3)
)
messages = st.builds(
    Message,
    st.binary(max_size=3 * BODY_BYTES),
    message_id=short_text,
    type=short_text,
    correlation_id=st.none() | short_text,
    user_id=st.none() | short_text,
    expiration_ms=st.none() | st.integers(0, 2**31),
    content_type=short_text,
    headers=st.dictionaries(st.text(max_size=150), header_values, max_size=8),
)


def by_pamqp(publication: Publication, channel: int) -> bytes:
    message = publication.message
    properties = Basic.Properties(
        content_type=message.content_type,
        delivery_mode=2,
        message_id=message.message_id,
        message_type=message.type or None,
        correlation_id=message.correlation_id,
        user_id=message.user_id,
        expiration=None if message.expiration_ms is None else str(message.expiration_ms),
        headers=cast(Any, dict(message.headers)) if message.headers else None,
    )
    publish = Basic.Publish(exchange=publication.exchange, routing_key=publication.routing_key, mandatory=True)
    frames: list[Any] = [publish, ContentHeader(properties=properties, body_size=len(message.body))]
    pieces = range(0, len(message.body), BODY_BYTES)
    frames += [ContentBody(message.body[start : start + BODY_BYTES]) for start in pieces]
    return b"".join(pamqp.frame.marshal(frame, channel) for frame in frames)


@given(messages, st.integers(1, 65535))
def test_a_publish_is_written_as_pamqp_writes_it(message: Message, channel: int) -> None:
    publication = Publication("apc.inter_agent", "idea.red.red-1", message)
    assert publish_frames([publication], channel, BODY_BYTES) == by_pamqp(publication, channel)


@given(st.lists(messages, max_size=3), st.integers(1, 65535))
def test_a_message_to_several_is_written_for_each(several: list[Message], channel: int) -> None:
    publications = [Publication("apc.inter_agent", key, message) for message in several for key in ("red-1", "red-2")]
    expected = b"".join(by_pamqp(publication, channel) for publication in publications)
    assert publish_frames(publications, channel, BODY_BYTES) == expected


def test_a_property_that_amqp_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="255"):
        publish_frames([Publication("e", "k", Message(b"", "m" * 256))], 1, BODY_BYTES)

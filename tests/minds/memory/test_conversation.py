"""A conversation as a value, and its document."""

from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from apc_minds.memory import ConversationContext, ConversationInvalid, ConversationMessage, ValueInvalid

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HELLO = ConversationMessage(role="user", content="hello", timestamp=NOON, metadata={"sender_id": "u-1"})


def test_the_document_is_that_of_the_protocol() -> None:
    conversation = ConversationContext(session_id="s-1", metadata={"summary": "one"}, revision=7).with_message(HELLO)
    document = {
        "session_id": "s-1",
        "messages": [
            {
                "role": "user",
                "content": "hello",
                "timestamp": "2026-01-01T12:00:00+00:00",
                "metadata": {"sender_id": "u-1"},
            }
        ],
        "metadata": {"summary": "one"},
        "agent_participants": [],
        "version": "1.0",
    }
    assert conversation.to_document() == orjson.loads(conversation.to_bytes()) == document
    assert ConversationContext.from_document(document, 7) == conversation


def test_a_message_names_its_participant_once() -> None:
    empty = ConversationContext(session_id="s-1")
    conversation = empty.with_message(HELLO, "a-1").with_message(HELLO, "a-2").with_message(HELLO, "a-1")
    assert conversation.agent_participants == ("a-1", "a-2")
    assert len(conversation.messages) == 3
    assert empty.messages == ()


def test_a_later_version_is_refused() -> None:
    with pytest.raises(ConversationInvalid, match=r"version: .*1\.0"):
        ConversationContext.from_document({"session_id": "s-1", "messages": [], "version": "2.0"})


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"messages": []}, "session_id"),
        ({"session_id": ""}, "session_id"),
        (
            {"session_id": "s", "messages": [{"role": "user", "timestamp": "2026-01-01T12:00:00Z"}]},
            "messages.0.content",
        ),
        ({"session_id": "s", "unknown": 1}, "unknown"),
        ([], "$"),
    ],
)
def test_a_document_that_does_not_fit_is_refused_with_its_path(document: Any, path: str) -> None:
    with pytest.raises(ConversationInvalid) as refused:
        ConversationContext.from_document(document)
    assert refused.value.path == path


def test_metadata_that_is_not_json_is_refused_with_its_path() -> None:
    with pytest.raises(ValueInvalid, match=r"^value refused at metadata\.at: datetime is not JSON"):
        ConversationContext(session_id="s-1", metadata={"at": NOON}).to_bytes()
